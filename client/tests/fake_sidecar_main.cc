// foreload_fake_sidecar PATH BOOT_TOKEN PRELOAD [silent] [hang-up]
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "client/tests/fake_sidecar.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  foreload::client::FakeOptions options{.path = argv[1],
                                        .boot_token = std::strtoull(argv[2], nullptr, 10),
                                        .preload = static_cast<std::uint32_t>(std::atoi(argv[3]))};
  for (int i = 4; i < argc; ++i) {
    if (std::strcmp(argv[i], "silent") == 0) options.answer_fetches = false;
    if (std::strcmp(argv[i], "hang-up") == 0) options.hang_up_after_grant = true;
  }
  foreload::client::FakeSidecar(options).Run();
}
