// SPDX-License-Identifier: Apache-2.0
// Published weights are kept as long as a reader holds them, and no longer.
#include "storage/versions/version_store.hpp"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::storage {
namespace {

using ::testing::HasSubstr;

PolicyVersion step(std::uint64_t number) {
  return {.line = 1, .step = number};
}

std::shared_ptr<const TensorMap> tensors(std::size_t bytes) {
  auto map = std::make_shared<TensorMap>();
  (*map)["w"] = {DType::kU8,
                 {static_cast<std::int64_t>(bytes)},
                 Buffer::adopt(std::vector<std::uint8_t>(bytes), DType::kU8)};
  return map;
}

PublishedWeights full(std::uint64_t number, std::size_t bytes = 10) {
  return {step(number), "digest-" + std::to_string(number), "", tensors(bytes), nullptr};
}

VersionStore store_of(const VersionStoreOptions& options) {
  auto store = VersionStore::create(options);
  EXPECT_TRUE(store.ok());
  return std::move(store).value();
}

TEST(VersionStore, RefusesAStoreWithoutVersions) {
  EXPECT_EQ(VersionStore::create({.max_versions = 0}).status().code(), Errc::kInvalidArgument);
}

TEST(VersionStore, KeepsTheNewestAndHeldVersions) {
  VersionStore store = store_of({});
  EXPECT_EQ(store.newest(1), std::nullopt);
  EXPECT_EQ(store.oldest_needed(1), std::nullopt);
  ASSERT_TRUE(store.publish(full(1)).ok());
  const VersionStore::Held held = store.acquire(step(1), "rollout-1").value();
  EXPECT_EQ(held.weights.base_digest, "digest-1");
  ASSERT_TRUE(store.publish(full(2)).ok());
  ASSERT_TRUE(store.publish(full(3)).ok());
  EXPECT_EQ(store.num_versions(), 2U) << "no reader held 2";
  EXPECT_EQ(store.newest(1), step(3));
  EXPECT_EQ(store.oldest_needed(1), step(1));
  EXPECT_EQ(store.bytes_used(), 20U);
  ASSERT_TRUE(store.release(held.lease).ok());
  EXPECT_EQ(store.oldest_needed(1), step(3));
  EXPECT_EQ(store.bytes_used(), 10U);
  EXPECT_EQ(held.weights.base->at("w").data.size_bytes(), 10U) << "a reader's handle stays valid";
  EXPECT_EQ(store.release(held.lease).code(), Errc::kNotFound);
}

TEST(VersionStore, SaysWhyAVersionIsMissing) {
  VersionStore store = store_of({});
  EXPECT_EQ(store.acquire(step(1), "r").status().code(), Errc::kNotFound);
  ASSERT_TRUE(store.publish(full(1)).ok());
  ASSERT_TRUE(store.publish(full(2)).ok());
  const Status gone = store.acquire(step(1), "r").status();
  EXPECT_EQ(gone.code(), Errc::kStaleVersion);
  EXPECT_THAT(gone.message(), HasSubstr("1.0.1 was discarded; the newest is 1.0.2"));
  EXPECT_EQ(store.acquire(step(3), "r").status().code(), Errc::kNotFound);
  EXPECT_EQ(store.acquire({.line = 2, .step = 1}, "r").status().code(), Errc::kNotFound);
}

TEST(VersionStore, VersionsOfALineOnlyGrow) {
  VersionStore store = store_of({});
  ASSERT_TRUE(store.publish(full(5)).ok());
  EXPECT_EQ(store.publish(full(4)).code(), Errc::kVersionConflict);
  EXPECT_TRUE(store.publish(full(5)).ok()) << "the same again changes nothing";
  EXPECT_EQ(store.bytes_used(), 10U);
  PublishedWeights other = full(5);
  other.base_digest = "another";
  EXPECT_EQ(store.publish(other).code(), Errc::kVersionConflict);
  other.base_digest.clear();
  EXPECT_EQ(store.publish(other).code(), Errc::kInvalidArgument);
  PublishedWeights restarted = full(3);
  restarted.version.incarnation = 1;
  EXPECT_TRUE(store.publish(restarted).ok()) << "a new incarnation may restart at an earlier step";
}

TEST(VersionStore, LinesAreIndependent) {
  VersionStore store = store_of({});
  PublishedWeights other = full(1);
  other.version.line = 0;
  ASSERT_TRUE(store.publish(full(7)).ok());
  ASSERT_TRUE(store.publish(other).ok());
  other.version.line = 2;
  ASSERT_TRUE(store.publish(other).ok());
  EXPECT_EQ(store.newest(0), (PolicyVersion{.line = 0, .step = 1}));
  EXPECT_EQ(store.newest(1), step(7));
  EXPECT_EQ(store.newest(2), (PolicyVersion{.line = 2, .step = 1}));
  EXPECT_EQ(store.newest(3), std::nullopt);
  EXPECT_EQ(store.num_versions(), 3U);
}

TEST(VersionStore, CountsSharedTensorsOnce) {
  VersionStore store = store_of({.max_versions = 4, .max_bytes = 120});
  const auto base = tensors(100);
  const auto adapter_run = [&](std::uint64_t number) {
    return PublishedWeights{step(number), "base", "adapter-" + std::to_string(number), base,
                            tensors(5)};
  };
  ASSERT_TRUE(store.publish(adapter_run(1)).ok());
  const VersionLease first = store.acquire(step(1), "a").value().lease;
  ASSERT_TRUE(store.publish(adapter_run(2)).ok());
  EXPECT_EQ(store.bytes_used(), 110U);
  ASSERT_TRUE(store.acquire(step(2), "b").ok());
  ASSERT_TRUE(store.publish(adapter_run(3)).ok());
  EXPECT_EQ(store.bytes_used(), 115U);
  ASSERT_TRUE(store.release(first).ok());
  EXPECT_EQ(store.bytes_used(), 110U);
}

TEST(VersionStore, LimitsCountAndBytesAndNamesTheHolder) {
  VersionStore store = store_of({.max_versions = 2, .max_bytes = 30});
  ASSERT_TRUE(store.publish(full(1)).ok());
  ASSERT_TRUE(store.acquire(step(1), "rollout-1").ok());
  ASSERT_TRUE(store.publish(full(2)).ok());
  ASSERT_TRUE(store.publish(full(3)).ok()) << "2 is discarded: no reader holds it";
  ASSERT_TRUE(store.acquire(step(3), "rollout-2").ok());
  const Status full_up = store.publish(full(4));
  EXPECT_EQ(full_up.code(), Errc::kResourceExhausted);
  EXPECT_THAT(full_up.message(), HasSubstr("max_versions 2; the oldest held version is 1.0.1, by "
                                           "rollout-1"));
  EXPECT_EQ(store.newest(1), step(3));
  EXPECT_EQ(store.drop_reader("rollout-1"), 1U);
  EXPECT_EQ(store.drop_reader("rollout-1"), 0U);
  const Status too_big = store.publish(full(4, 21));
  EXPECT_EQ(too_big.code(), Errc::kResourceExhausted);
  EXPECT_THAT(too_big.message(), HasSubstr("31 bytes, above max_bytes 30"));
  EXPECT_TRUE(store.publish(full(4, 20)).ok());
  EXPECT_EQ(store.bytes_used(), 30U);
}

TEST(VersionStore, TheLastReleaseDiscardsAVersion) {
  VersionStore store = store_of({});
  ASSERT_TRUE(store.publish(full(1)).ok());
  const VersionLease a = store.acquire(step(1), "a").value().lease;
  const VersionLease b = store.acquire(step(1), "b").value().lease;
  EXPECT_NE(a, b);
  ASSERT_TRUE(store.publish(full(2)).ok());
  ASSERT_TRUE(store.release(a).ok());
  EXPECT_EQ(store.oldest_needed(1), step(1));
  ASSERT_TRUE(store.release(b).ok());
  EXPECT_EQ(store.oldest_needed(1), step(2));
}

}  // namespace
}  // namespace tidemill::storage
