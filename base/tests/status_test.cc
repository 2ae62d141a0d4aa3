#include "base/status.h"

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace foreload {
namespace {

TEST(Status, DefaultIsOkAndHasNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.ToString(), "ok");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kFailedPrecondition); ++code) {
    names.insert(StatusCodeName(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(StatusCode::kFailedPrecondition) + 1);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Status, FactoriesSetTheirCode) {
  EXPECT_EQ(InvalidArgument("m").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(NotFound("m").code(), StatusCode::kNotFound);
  EXPECT_EQ(AlreadyExists("m").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(ResourceExhausted("m").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Unavailable("m").code(), StatusCode::kUnavailable);
  EXPECT_EQ(DeadlineExceeded("m").code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Cancelled("m").code(), StatusCode::kCancelled);
  EXPECT_EQ(DataLoss("m").code(), StatusCode::kDataLoss);
  EXPECT_EQ(IoError("m").code(), StatusCode::kIoError);
  EXPECT_EQ(Unimplemented("m").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(FailedPrecondition("m").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(NotFound("no such block").ToString(), "not found: no such block");
}

TEST(Status, FullDiskAndTableAreExhaustionOtherErrnosAreIoErrors) {
  for (const int errnum : {ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE}) {
    EXPECT_EQ(Status::FromErrno(errnum, "write").code(), StatusCode::kResourceExhausted) << errnum;
  }
  for (const int errnum : {EIO, EACCES, ENOENT}) {
    EXPECT_EQ(Status::FromErrno(errnum, "write").code(), StatusCode::kIoError) << errnum;
  }
  EXPECT_EQ(Status::FromErrno(EIO, "read segment 3").message(), "read segment 3: Input/output error");
}

TEST(Status, ContextGoesBeforeTheMessageAndLeavesOkAlone) {
  EXPECT_EQ(DataLoss("bad checksum").WithContext("segment 3").ToString(), "data loss: segment 3: bad checksum");
  EXPECT_TRUE(OkStatus().WithContext("segment 3").ok());
  EXPECT_EQ(OkStatus().WithContext("segment 3").message(), "");
}

TEST(Result, HoldsAValueThatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(**result, 7);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(Result, HoldsAnError) {
  const Result<int> result(NotFound("no such block"));
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kNotFound);
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorStopsTheProcessWithItsMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Result<int> result(NotFound("no such block"));
  EXPECT_DEATH((void)result.value(), "no such block");
}

TEST(ResultDeathTest, OkStatusWithoutAValueStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)Result<int>(OkStatus()), "needs an error");
}

Status PositiveOnly(int x) {
  return x > 0 ? OkStatus() : InvalidArgument("not positive");
}

Result<int> Half(int x) {
  FORELOAD_RETURN_IF_ERROR(PositiveOnly(x));
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  FORELOAD_ASSIGN_OR_RETURN(const int half, Half(x));
  FORELOAD_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Result, MacrosReturnTheFirstErrorAndOtherwiseTheValue) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(-8).status().message(), "not positive");
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

TEST(CheckDeathTest, PrintsConditionAndMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(FORELOAD_CHECK(1 + 1 == 3, "arithmetic"), "check failed: 1 \\+ 1 == 3: arithmetic");
  FORELOAD_CHECK(1 + 1 == 2, "never printed");
}

}  // namespace
}  // namespace foreload
