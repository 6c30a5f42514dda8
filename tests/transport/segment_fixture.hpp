// SPDX-License-Identifier: Apache-2.0
// Pieces for tests of segments: pools, readers, and waiting for an event.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_reader.hpp"
#include "transport/segments/segment_server.hpp"

namespace tidemill::transport {

/// How long a test waits for what has to happen. Only a failing test waits that long.
inline constexpr std::chrono::seconds kTestWait{60};
inline constexpr int kWaitMs = std::chrono::milliseconds(kTestWait).count();

/// An event that happens once.
class Event {
public:
  void set() {
    const std::lock_guard lock(mutex_);
    happened_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestWait, [this] { return happened_; });
  }
  [[nodiscard]] bool happened() {
    const std::lock_guard lock(mutex_);
    return happened_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

inline SegmentPoolOptions small_pool() {
  SegmentPoolOptions options;
  options.pool = 7;
  options.max_bytes = 8 << 20;
  options.max_free_bytes = 4 << 20;
  options.shared_segment_bytes = 64 << 10;
  return options;
}

/// Waits until all segments of a pool that may hold `max_bytes` have been given back.
[[nodiscard]] inline bool wait_until_empty(SegmentPool& pool, std::uint64_t max_bytes) {
  const auto empty = std::make_shared<Event>();
  pool.when_room(max_bytes, [empty] { empty->set(); });
  return empty->wait();
}

inline ReaderToken token_of(std::uint64_t number) {
  ReaderToken token{};
  std::memcpy(token.data(), &number, sizeof(number));
  token.back() = std::byte{0x5a};
  return token;
}

/// Returns the bytes that tests write: a pattern that depends on `seed`.
inline std::byte pattern(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>((seed * 31 + i * 7 + i / 4096) & 0xFFU);
}

/// Allocates a buffer and writes the pattern.
[[nodiscard]] inline Result<Buffer> patterned(SegmentPool& pool, std::size_t size,
                                              std::uint64_t seed) {
  return pool.allocate(size, DType::kU8, [&](std::span<std::byte> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = pattern(seed, i);
    }
  });
}

[[nodiscard]] inline bool has_pattern(const Buffer& buffer, std::uint64_t seed) {
  const std::span<const std::byte> bytes = buffer.bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern(seed, i)) {
      return false;
    }
  }
  return true;
}

/// Returns the inode of the file that is mapped at `address` in this process, or 0.
inline std::uint64_t mapped_inode(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t inode = 0;
    char dash = 0;
    std::string mode;
    std::string offset;
    std::string device;
    fields >> std::hex >> begin >> dash >> end >> mode >> offset >> device >> std::dec >> inode;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    if (begin <= at && at < end) {
      return inode;
    }
  }
  return 0;
}

/// Returns how many mappings of segments this process has.
inline int mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:tidemill_segment") != std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace tidemill::transport
