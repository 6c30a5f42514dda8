// SPDX-License-Identifier: Apache-2.0
// A file system that loses power, with a model of the disk's content afterwards.
//
// Calls go to the real file system below a root until the crash. After the crash every call fails.
// A model tracks which data is durable: bytes are durable once their file was synced, and names
// once their directory was synced. Any part of the other data may survive. `survive` picks one
// possible disk and replaces the content of the root with it.
#pragma once

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "base/random.hpp"

namespace tidemill::test {

/// What happens to changes of names that no sync of their directory has made durable.
enum class UnsyncedNames { kNone, kAll, kFirstOnes, kAnyOnes };
/// What happens to bytes that no sync of their file has made durable.
enum class UnsyncedBytes { kNone, kHalf, kAll, kAny };

class CrashingFileSystem final : public FileSystem {
public:
  /// Treats everything below `root` as durable. Call `crash_at` (from 1) and all later calls fail.
  CrashingFileSystem(std::filesystem::path root, int crash_at)
      : root_(std::move(root)), crash_at_(crash_at) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      auto node = std::make_shared<Node>();
      node->is_directory = entry.is_directory();
      if (!node->is_directory) {
        std::ostringstream text;
        text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
        node->bytes = text.str();
        node->synced = true;
      }
      certain_[entry.path().string()] = node;
    }
    live_ = certain_;
  }

  [[nodiscard]] int num_calls() const { return num_calls_; }
  [[nodiscard]] bool crashed() const { return num_calls_ >= crash_at_; }

  /// Makes these calls fail without a crash.
  void fail_at(std::set<int> calls) { fail_at_ = std::move(calls); }

  int create(const std::filesystem::path& path) override {
    const int descriptor = dies() ? -EIO : real_.create(path);
    if (descriptor >= 0) {
      auto node = std::make_shared<Node>();
      open_[descriptor] = node;
      change(path.parent_path(), {{path.string(), node}});
    }
    return descriptor;
  }
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override {
    const std::int64_t count = dies() ? -EIO : real_.write(descriptor, bytes);
    if (count > 0) {
      open_.at(descriptor)->synced = false;
      open_.at(descriptor)
          ->bytes.append(reinterpret_cast<const char*>(bytes.data()),
                         static_cast<std::size_t>(count));
    }
    return count;
  }
  int sync(int descriptor) override {
    const int result = dies() ? -EIO : 0;  // only the model is synced
    if (result == 0) {
      open_.at(descriptor)->synced = true;
    }
    return result;
  }
  int close(int descriptor) override {
    const int result = real_.close(descriptor);  // after a crash too, to leak no descriptor
    open_.erase(descriptor);
    return dies() ? -EIO : result;
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    const int result = dies() ? -EIO : real_.rename(from, to);
    if (result == 0) {
      change(to.parent_path(), {{to.string(), live_.at(from.string())}, {from.string(), nullptr}});
    }
    return result;
  }
  int make_directory(const std::filesystem::path& path) override {
    const int result = dies() ? -EIO : real_.make_directory(path);
    if (result == 0) {
      auto node = std::make_shared<Node>();
      node->is_directory = true;
      change(path.parent_path(), {{path.string(), node}});
    }
    return result;
  }
  int sync_directory(const std::filesystem::path& path) override {
    const int result = dies() ? -EIO : 0;
    if (result == 0) {
      for (const Change& each : pending_[path.string()]) {
        apply(each, certain_);
      }
      pending_.erase(path.string());
    }
    return result;
  }
  int remove(int directory, const std::string& name, EntryKind kind) override {
    const int result = dies() ? -EIO : real_.remove(directory, name, kind);
    if (result == 0) {
      change(std::filesystem::path(name).parent_path(), {{name, nullptr}});
    }
    return result;
  }

  /// Replaces the content of the root with a disk that the crash may have left. `seed` decides the
  /// random choices.
  void survive(UnsyncedNames names, UnsyncedBytes bytes, std::uint64_t seed) {
    RandomStream random(seed);
    Tree tree = certain_;
    for (const auto& [directory, changes] : pending_) {
      const std::size_t first = random.below(changes.size() + 1);
      for (std::size_t i = 0; i < changes.size(); ++i) {
        const bool survives = names == UnsyncedNames::kAll ||
                              (names == UnsyncedNames::kFirstOnes && i < first) ||
                              (names == UnsyncedNames::kAnyOnes && random.below(2) == 0);
        if (survives) {
          apply(changes[i], tree);
        }
      }
    }
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
    for (const auto& [path, node] : tree) {  // in order of names: a directory before its entries
      if (!std::filesystem::exists(std::filesystem::path(path).parent_path())) {
        continue;  // its directory was lost
      }
      if (node->is_directory) {
        std::filesystem::create_directory(path);
      } else {
        std::ofstream(path, std::ios::binary) << surviving_bytes(*node, bytes, random);
      }
    }
  }

private:
  struct Node {
    bool is_directory = false;
    std::string bytes;
    bool synced = false;
  };
  using Tree = std::map<std::string, std::shared_ptr<Node>>;
  struct NameChange {
    std::string path;
    std::shared_ptr<Node> node;  // null: the name is removed
  };
  using Change = std::vector<NameChange>;  // takes effect as a whole or not at all

  bool dies() {
    ++num_calls_;
    return num_calls_ >= crash_at_ || fail_at_.contains(num_calls_);
  }

  static void apply(const Change& each, Tree& tree) {
    for (const NameChange& name : each) {
      if (name.node) {
        tree[name.path] = name.node;
      } else {
        tree.erase(name.path);
      }
    }
  }
  void change(const std::filesystem::path& directory, Change each) {
    apply(each, live_);
    pending_[directory.string()].push_back(std::move(each));
  }
  static std::string surviving_bytes(const Node& node, UnsyncedBytes bytes, RandomStream& random) {
    if (node.synced || bytes == UnsyncedBytes::kAll) {
      return node.bytes;
    }
    switch (bytes) {
      case UnsyncedBytes::kHalf: return node.bytes.substr(0, node.bytes.size() / 2);
      case UnsyncedBytes::kAny: {
        // A file of the right length that ends in zeros is as possible as a short file.
        std::string some = node.bytes.substr(0, random.below(node.bytes.size() + 1));
        some.resize(random.below(2) == 0 ? some.size() : node.bytes.size());
        return some;
      }
      default: return {};
    }
  }

  std::filesystem::path root_;
  int crash_at_;
  std::set<int> fail_at_;
  int num_calls_ = 0;
  PosixFileSystem real_;
  Tree certain_;
  Tree live_;
  std::map<std::string, std::vector<Change>> pending_;  // by directory
  std::map<int, std::shared_ptr<Node>> open_;
};

}  // namespace tidemill::test
