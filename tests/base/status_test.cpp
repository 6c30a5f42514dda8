// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/result.hpp"

namespace tidemill {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) {
    return invalid_argument("odd value=" + std::to_string(value));
  }
  return value / 2;
}

Result<int> quarter(int value) {
  TIDEMILL_ASSIGN_OR_RETURN(const int once, half(value));
  TIDEMILL_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

Status check(int value) {
  TIDEMILL_RETURN_IF_ERROR(quarter(value).status());
  return {};
}

TEST(Result, MacrosPassValuesOnAndReturnTheFirstFailure) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).status().message(), "odd value=3");
  EXPECT_TRUE(check(4).ok());
  EXPECT_EQ(check(5).code(), Errc::kInvalidArgument);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(Status, ContextPrecedesTheMessageAndKeepsTheCode) {
  const Status status = corrupt_data("bad header").with_context("model.safetensors");
  EXPECT_EQ(status.to_string(), "corrupt_data: model.safetensors: bad header");
  EXPECT_TRUE(Status().with_context("anything").ok());
}

TEST(Status, EveryCodeHasAName) {
  const std::pair<Errc, std::string> names[] = {{Errc::kInvalidArgument, "invalid_argument"},
                                                {Errc::kNotFound, "not_found"},
                                                {Errc::kTimeout, "timeout"},
                                                {Errc::kUnavailable, "unavailable"},
                                                {Errc::kResourceExhausted, "resource_exhausted"},
                                                {Errc::kStaleVersion, "stale_version"},
                                                {Errc::kCorruptData, "corrupt_data"},
                                                {Errc::kUnimplemented, "unimplemented"},
                                                {Errc::kInternal, "internal"}};
  for (const auto& [code, name] : names) {
    EXPECT_EQ(Status(code, "why").to_string(), name + ": why");
  }
  EXPECT_EQ(Status().to_string(), "ok");
}

TEST(CheckDeathTest, PrintsConditionAndValues) {
  const int size = 3;
  EXPECT_DEATH(TIDEMILL_CHECK(size == 4) << "size=" << size, "check failed: size == 4 size=3");
}

}  // namespace
}  // namespace tidemill
