// SPDX-License-Identifier: Apache-2.0
// States to store, and a fixture with a run directory.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::storage {

inline Tensor random_tensor(std::uint64_t seed, std::int64_t rows) {
  RandomStream random(seed);
  std::vector<float> values(static_cast<std::size_t>(rows) * 4);
  for (float& value : values) {
    value = static_cast<float>(random.normal());
  }
  return {DType::kF32, {rows, 4}, Buffer::adopt(std::move(values), DType::kF32)};
}

/// Returns the state of a small run at `step`: weights that never change, others that do, a blob.
inline Checkpoint state_at(std::uint64_t step) {
  Checkpoint state;
  state.step = step;
  state.tensors["base"] = {{"embed", random_tensor(7, 16)}, {"head", random_tensor(8, 3)}};
  state.tensors["adapter"] = {{"a", random_tensor(100 + step, 5)},
                              {"b", random_tensor(200 + step, 1)}};
  state.blobs["rows"] = "{\"step\": " + std::to_string(step) + "}\n";
  state.blobs["empty"] = "";
  return state;
}

/// Returns `state` as text with digests, so that states can be compared and printed.
inline std::string fingerprint(const Checkpoint& state) {
  std::string text = "step " + std::to_string(state.step);
  for (const auto& [name, tensors] : state.tensors) {
    text += "\n" + name + " " + digest_tensors(tensors);
  }
  for (const auto& [name, bytes] : state.blobs) {
    text += "\n" + name + " " + digest_bytes(std::as_bytes(std::span(bytes)));
  }
  return text;
}

inline std::string read_whole(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void write_whole(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Returns the names in `folder`, sorted, that start with `prefix`.
inline std::vector<std::string> names_in(const std::filesystem::path& folder,
                                         const std::string& prefix = "") {
  std::vector<std::string> names = list_directory(folder).value();
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

/// A run directory, and stores that use it.
class CheckpointTest : public ::testing::Test {
protected:
  explicit CheckpointTest(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : directory_(parent) {}

  [[nodiscard]] std::filesystem::path run() const { return directory_.path() / "run"; }
  [[nodiscard]] std::filesystem::path commits() const { return run() / "checkpoints"; }
  [[nodiscard]] std::filesystem::path objects() const { return commits() / "objects"; }

  void SetUp() override { std::filesystem::create_directory(run()); }

  [[nodiscard]] Result<std::unique_ptr<CheckpointStore>> try_open(
      OnDamage on_damage = OnDamage::kRefuse) {
    return CheckpointStore::open({run(), "run-1", on_damage}, files_);
  }
  [[nodiscard]] std::unique_ptr<CheckpointStore> open() {
    auto store = try_open();
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return std::move(store).value();
  }
  static void commit(CheckpointStore& store, std::uint64_t step) {
    const auto report = store.commit(state_at(step));
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    ASSERT_TRUE(report.value().cleanup.ok()) << report.value().cleanup.to_string();
  }
  /// Returns the path of the newest manifest.
  [[nodiscard]] std::filesystem::path newest_manifest() const {
    return commits() / names_in(commits(), "commit-").back();
  }

  PosixFileSystem files_;
  test::TemporaryDirectory directory_;
};

}  // namespace tidemill::storage
