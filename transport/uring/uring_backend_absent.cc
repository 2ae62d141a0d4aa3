// Stands in where liburing is missing or FORELOAD_URING is OFF.
#include "transport/uring/uring_backend.h"

namespace foreload {

Result<std::unique_ptr<UringBackend>> UringBackend::Create(const UringBackendOptions&) {
  return Unimplemented("io_uring: this build has no liburing (FORELOAD_URING=ON needs liburing-dev)");
}

}  // namespace foreload
