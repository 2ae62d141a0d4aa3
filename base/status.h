// Errors as values: a code, and a message that says what to do about it.
//
// `Status` is cheap when ok (no allocation). `Result<T>` holds a value or a status that is not ok. Nothing in this
// project throws; libraries that throw are stopped in the adapter that includes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace foreload {

enum class StatusCode : unsigned char {
  kOk,
  kInvalidArgument,    // the caller's input is wrong, whatever the state
  kNotFound,           // the named thing does not exist
  kAlreadyExists,      // the named thing exists and stays as it is
  kResourceExhausted,  // a named limit is reached; retry after something is freed
  kUnavailable,        // the other side is not there now; retry later
  kDeadlineExceeded,
  kCancelled,
  kDataLoss,           // bytes are not what was stored
  kIoError,            // the operating system refused an operation
  kUnimplemented,      // this build or machine has no such feature
  kFailedPrecondition  // right request, wrong state; retrying does not help
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // The message of `errnum` (an errno value) after `what`; kIoError, or kResourceExhausted for ENOSPC, EDQUOT, ENOMEM,
  // EMFILE and ENFILE.
  static Status FromErrno(int errnum, std::string_view what);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "code: message", for logs.
  std::string ToString() const;

  // The same status with `context: ` before its message.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() {
  return {};
}
inline Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
inline Status NotFound(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}
inline Status AlreadyExists(std::string message) {
  return {StatusCode::kAlreadyExists, std::move(message)};
}
inline Status ResourceExhausted(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
inline Status Unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message)};
}
inline Status DeadlineExceeded(std::string message) {
  return {StatusCode::kDeadlineExceeded, std::move(message)};
}
inline Status Cancelled(std::string message) {
  return {StatusCode::kCancelled, std::move(message)};
}
inline Status DataLoss(std::string message) {
  return {StatusCode::kDataLoss, std::move(message)};
}
inline Status IoError(std::string message) {
  return {StatusCode::kIoError, std::move(message)};
}
inline Status Unimplemented(std::string message) {
  return {StatusCode::kUnimplemented, std::move(message)};
}
inline Status FailedPrecondition(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): `return value;` reads well
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    FORELOAD_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // The value; calling these on an error is a bug of the caller and stops the process.
  T& value() & { return CheckedValue(); }
  const T& value() const& { return const_cast<Result*>(this)->CheckedValue(); }
  T&& value() && { return std::move(CheckedValue()); }
  T* operator->() { return &CheckedValue(); }
  const T* operator->() const { return &value(); }
  const T& operator*() const& { return value(); }
  T& operator*() & { return CheckedValue(); }
  T&& operator*() && { return std::move(CheckedValue()); }

 private:
  T& CheckedValue() {
    FORELOAD_CHECK(value_.has_value(), status_.message().c_str());
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace foreload

// Returns from the enclosing function when `expr` (a Status) is not ok.
#define FORELOAD_RETURN_IF_ERROR(expr)                   \
  do {                                                   \
    ::foreload::Status foreload_status_ = (expr);        \
    if (!foreload_status_.ok()) return foreload_status_; \
  } while (false)

#define FORELOAD_CONCAT_INNER_(a, b) a##b
#define FORELOAD_CONCAT_(a, b) FORELOAD_CONCAT_INNER_(a, b)

// `FORELOAD_ASSIGN_OR_RETURN(auto x, F());` assigns the value of a Result, or returns its status.
#define FORELOAD_ASSIGN_OR_RETURN(lhs, expr) \
  FORELOAD_ASSIGN_OR_RETURN_(FORELOAD_CONCAT_(foreload_result_, __LINE__), lhs, expr)
#define FORELOAD_ASSIGN_OR_RETURN_(result, lhs, expr) \
  auto result = (expr);                               \
  if (!result.ok()) return result.status();           \
  lhs = std::move(result).value()
