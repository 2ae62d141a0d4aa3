#include "proto/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace foreload {

Sha256Digest Sha256(const void* data, std::size_t bytes) {
  Sha256Digest digest;
  unsigned int written = 0;
  const int ok = EVP_Digest(data, bytes, digest.data(), &written, EVP_sha256(), nullptr);
  FORELOAD_CHECK(ok == 1 && written == digest.size(), "OpenSSL has no SHA-256");
  return digest;
}

}  // namespace foreload
