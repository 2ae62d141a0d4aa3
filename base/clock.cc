#include "base/clock.h"

#include <ctime>

namespace foreload {
namespace {

TimeNs Read(clockid_t id) {
  timespec ts{};
  clock_gettime(id, &ts);
  return static_cast<TimeNs>(ts.tv_sec) * kSecond + ts.tv_nsec;
}

}  // namespace

TimeNs MonotonicNow() {
  return Read(CLOCK_MONOTONIC);
}
TimeNs WallNow() {
  return Read(CLOCK_REALTIME);
}

}  // namespace foreload
