// CHECK stops the process when one of our own invariants is broken. Never use it on input from outside: that gets a
// Status and a counter.
#pragma once

namespace foreload {

// Prints file, line, condition and message to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* message);

}  // namespace foreload

#define FORELOAD_CHECK(condition, message)                              \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::foreload::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
