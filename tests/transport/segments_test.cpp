// SPDX-License-Identifier: Apache-2.0
// Pools, servers and readers in one process; segment_processes_test.cpp has several processes.
#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/transport/segment_fixture.hpp"
#include "transport/segments/segment_memory.hpp"

namespace tidemill::transport {
namespace {

class SegmentsTest : public ::testing::Test {
protected:
  void serve(const SegmentPoolOptions& options = small_pool()) {
    options_ = options;
    pool_ = std::make_unique<SegmentPool>(options);
    SegmentServerOptions server;
    server.path = path();
    server_ = SegmentServer::listen(*pool_, server).value();
  }

  [[nodiscard]] std::filesystem::path path() const { return directory_.path() / "segments"; }

  void add(std::uint32_t reader, std::uint64_t max_lent_bytes = 64 << 20) {
    const Status added = pool_->add_reader({reader, token_of(reader), max_lent_bytes});
    EXPECT_TRUE(added.ok()) << added.to_string();
  }

  [[nodiscard]] SegmentReaderOptions options_of(std::uint32_t reader) const {
    SegmentReaderOptions options;
    options.path = path();
    options.reader = reader;
    options.token = token_of(reader);
    return options;
  }

  std::unique_ptr<SegmentReader> connected(std::uint32_t reader,
                                           std::uint64_t max_lent_bytes = 64 << 20) {
    add(reader, max_lent_bytes);
    return SegmentReader::connect(options_of(reader)).value();
  }

  // Lends a new buffer, drops the handle of the pool, and returns what a message would carry.
  BufferIdentity sent(std::size_t size, std::uint64_t seed, std::uint32_t reader) {
    const Buffer buffer = patterned(*pool_, size, seed).value();
    const Status lent = pool_->lend(buffer, reader);
    EXPECT_TRUE(lent.ok()) << lent.to_string();
    return buffer.identity();
  }

  [[nodiscard]] bool becomes_empty() { return wait_until_empty(*pool_, options_.max_bytes); }

  test::TemporaryDirectory directory_;
  SegmentPoolOptions options_;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<SegmentServer> server_;
};

TEST_F(SegmentsTest, AReaderReadsTheMemoryThatThePoolHasWritten) {
  serve();
  const auto reader = connected(1);
  EXPECT_EQ(reader->pool(), 7U);
  UnwrittenBuffer made = pool_->allocate_unwritten(100'000, DType::kF32).value();
  std::ranges::fill(made.bytes, std::byte{3});
  ASSERT_TRUE(pool_->lend(made.buffer, 1).ok());
  const Buffer read = reader->resolve(made.buffer.identity()).value();
  EXPECT_EQ(read.identity(), made.buffer.identity());
  EXPECT_EQ(read.identity().dtype, DType::kF32);
  EXPECT_TRUE(std::ranges::equal(read.bytes(), made.bytes));
  // The same pages: they have one inode, and a later change is visible. (A program makes none.)
  EXPECT_NE(read.bytes().data(), made.bytes.data());
  EXPECT_EQ(mapped_inode(read.bytes().data()), mapped_inode(made.bytes.data()));
  EXPECT_NE(mapped_inode(read.bytes().data()), 0U);
  made.bytes[99'999] = std::byte{77};
  EXPECT_EQ(read.bytes()[99'999], std::byte{77});
}

TEST_F(SegmentsTest, ALoanKeepsABufferThatItsPoolHasDropped) {
  serve();
  add(1);
  const BufferIdentity small = sent(100, 1, 1);
  const BufferIdentity large = sent(1 << 20, 2, 1);
  const BufferIdentity empty = sent(0, 3, 1);
  EXPECT_EQ(pool_->lent_bytes(1), (1U << 20U) + (64U << 10U));
  const auto reader = SegmentReader::connect(options_of(1)).value();
  {
    const Buffer first = reader->resolve(small).value();
    const Buffer second = reader->resolve(large).value();
    EXPECT_TRUE(reader->resolve(empty).value().bytes().empty());
    const Buffer part = second.slice(1000, 500, DType::kU8);
    EXPECT_TRUE(has_pattern(first, 1));
    EXPECT_TRUE(has_pattern(second, 2));
    EXPECT_EQ(part.bytes()[0], pattern(2, 1000));
    EXPECT_EQ(pool_->use().used_bytes, (1U << 20U) + (64U << 10U));
  }
  EXPECT_TRUE(becomes_empty());
  EXPECT_EQ(pool_->lent_bytes(1), 0U);
  EXPECT_EQ(pool_->use().segments, 0U);
  EXPECT_EQ(mapped_segments(), 0) << "the reader has unmapped them too";
}

TEST_F(SegmentsTest, EachLoanIsResolvedOnce) {
  serve();
  const auto reader = connected(1);
  const Buffer buffer = patterned(*pool_, 10'000, 1).value();
  EXPECT_EQ(reader->resolve(buffer.identity()).status().code(), Errc::kNotFound) << "not lent";
  ASSERT_TRUE(pool_->lend(buffer, 1).ok());
  ASSERT_TRUE(pool_->lend(buffer, 1).ok());
  const Buffer first = reader->resolve(buffer.identity()).value();
  const Buffer part = reader->resolve(buffer.slice(10, 20, DType::kU8).identity()).value();
  EXPECT_EQ(part.bytes()[0], pattern(1, 10));
  const Status third = reader->resolve(buffer.identity()).status();
  EXPECT_EQ(third.to_string(),
            "not_found: " + to_string(buffer.identity()) + ": this reader has no loan of it left");
  ASSERT_TRUE(pool_->lend(buffer, 1).ok());
  pool_->take_back(buffer, 1);
  EXPECT_EQ(reader->resolve(buffer.identity()).status().code(), Errc::kNotFound) << "taken back";
}

TEST_F(SegmentsTest, RefusesIdentitiesThatNameNothing) {
  serve();
  const auto reader = connected(1);
  const BufferIdentity lent = sent(10'000, 1, 1);
  const auto with = [&](auto change) {
    BufferIdentity identity = lent;
    change(identity);
    return identity;
  };
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const std::pair<BufferIdentity, Errc> cases[] = {
      {with([](auto& x) { x.pool = 8; }), Errc::kNotFound},
      {with([](auto& x) { x.segment = 999; }), Errc::kNotFound},
      {with([](auto& x) { x.segment = 0; }), Errc::kNotFound},
      {with([](auto& x) { x.generation = 1; }), Errc::kNotFound},
      {with([](auto& x) { x.length = 12'289; }), Errc::kInvalidArgument},
      {with([](auto& x) { x.offset = 2'289; }), Errc::kInvalidArgument},
      {with([](auto& x) { x.offset = kMax; }), Errc::kInvalidArgument},
      {with([](auto& x) { x.length = kMax; }), Errc::kInvalidArgument},
      {with([](auto& x) { x.offset = kMax - 9'999; }), Errc::kInvalidArgument},
  };
  for (const auto& [identity, code] : cases) {
    const Status status = reader->resolve(identity).status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_EQ(status.message().find(to_string(identity) + ": "), 0U) << status.to_string();
  }
  EXPECT_TRUE(has_pattern(reader->resolve(lent).value(), 1)) << "none of these has used the loan";
}

TEST_F(SegmentsTest, ABufferOfAnEarlierGenerationIsStale) {
  serve();
  const auto reader = connected(1, 12'288);
  const BufferIdentity early = sent(10'000, 1, 1);
  Buffer held = reader->resolve(early).value();
  const Buffer other = patterned(*pool_, 10'000, 2).value();
  EXPECT_EQ(pool_->lend(other, 1).code(), Errc::kResourceExhausted);
  Event lendable;
  pool_->when_lendable(other, 1, [&] { lendable.set(); });
  EXPECT_FALSE(lendable.happened());
  held = {};
  ASSERT_TRUE(lendable.wait());
  const Status stale = reader->resolve(early).status();
  EXPECT_EQ(stale.code(), Errc::kStaleVersion) << stale.to_string();
  const BufferIdentity again = sent(10'000, 3, 1);
  EXPECT_EQ(again.segment, early.segment);
  EXPECT_EQ(again.generation, 1U);
  EXPECT_EQ(reader->resolve(early).status().code(), Errc::kStaleVersion);
  EXPECT_TRUE(has_pattern(reader->resolve(again).value(), 3));
}

TEST_F(SegmentsTest, AReaderKeepsAtMostItsLimit) {
  serve();
  const auto reader = connected(1, 64 << 10);
  const Buffer too_large = patterned(*pool_, 65'537, 1).value();
  EXPECT_EQ(pool_->lend(too_large, 1).code(), Errc::kInvalidArgument);
  std::vector<BufferIdentity> small;
  for (int i = 0; i < 50; ++i) {
    small.push_back(sent(1000, 2, 1));  // they share a segment
  }
  const Buffer large = patterned(*pool_, 10'000, 3).value();
  const Status full = pool_->lend(large, 1);
  EXPECT_EQ(full.code(), Errc::kResourceExhausted);
  EXPECT_NE(full.message().find("for reader 1: the reader keeps 65536 of 65536 bytes"),
            std::string::npos)
      << full.to_string();
  Event lendable;
  pool_->when_lendable(large, 1, [&] { lendable.set(); });
  for (std::size_t i = 0; i < small.size(); ++i) {
    EXPECT_FALSE(lendable.happened()) << i;
    EXPECT_TRUE(has_pattern(reader->resolve(small[i]).value(), 2));
  }
  ASSERT_TRUE(lendable.wait()) << "with the last loan, and without another call";
  EXPECT_TRUE(pool_->lend(large, 1).ok());
}

TEST_F(SegmentsTest, AFullPoolCallsWhenItHasRoom) {
  serve();
  std::vector<Buffer> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(patterned(*pool_, 1 << 20, 1).value());
  }
  const Status full = pool_->allocate_unwritten(1, DType::kU8).status();
  EXPECT_EQ(full.code(), Errc::kResourceExhausted);
  EXPECT_NE(full.message().find("8388608 bytes are in use"), std::string::npos) << full.to_string();
  std::atomic<int> one = 0;
  std::atomic<int> three = 0;
  std::atomic<int> never = 0;
  pool_->when_room(1 << 20, [&] { ++one; });
  pool_->when_room(3 << 20, [&] { ++three; });
  pool_->when_room(9 << 20, [&] { ++never; });
  EXPECT_EQ(never, 1) << "it never has that much room, so waiting makes no sense";
  held.pop_back();
  EXPECT_EQ(one, 1);
  held.pop_back();
  EXPECT_EQ(three, 0);
  held.pop_back();
  EXPECT_EQ(three, 1);
  held.clear();
  EXPECT_EQ(one, 1) << "once";
  EXPECT_EQ(pool_->use().free_bytes, 4U << 20U) << "the rest was given back";
}

TEST_F(SegmentsTest, TheLoansOfAReaderEndWithItsConnection) {
  serve();
  auto reader = connected(1);
  const BufferIdentity unresolved = sent(10'000, 1, 1);
  const BufferIdentity resolved = sent(1 << 20, 2, 1);
  std::optional<Buffer> held = reader->resolve(resolved).value();
  reader.reset();
  EXPECT_TRUE(has_pattern(*held, 2)) << "a buffer outlives its reader";
  EXPECT_EQ(pool_->lent_bytes(1), (1U << 20U) + 12'288U);
  held.reset();
  EXPECT_TRUE(becomes_empty());
  const Buffer late = patterned(*pool_, 100, 1).value();
  EXPECT_EQ(pool_->lend(late, 1).code(), Errc::kUnavailable);
  EXPECT_EQ(pool_->lend(late, 2).code(), Errc::kNotFound);
  EXPECT_EQ(SegmentReader::connect(options_of(1)).status().code(), Errc::kUnavailable)
      << "it may connect once";
  EXPECT_FALSE(pool_->add_reader({1, token_of(1), 1}).ok());
  pool_->drop_reader(1);
  reader = connected(1);
  ASSERT_TRUE(pool_->lend(late, 1).ok());
  EXPECT_TRUE(has_pattern(reader->resolve(late.identity()).value(), 1));
  EXPECT_EQ(reader->resolve(unresolved).status().code(), Errc::kNotFound);
}

TEST_F(SegmentsTest, ADroppedReaderLosesItsConnection) {
  serve();
  add(1);
  Event lost;
  SegmentReaderOptions options = options_of(1);
  options.on_lost = [&](const Status& status) {
    EXPECT_EQ(status.code(), Errc::kUnavailable);
    lost.set();
  };
  const auto reader = SegmentReader::connect(options).value();
  const Buffer held = reader->resolve(sent(10'000, 1, 1)).value();
  pool_->drop_reader(1);
  pool_->drop_reader(1);
  EXPECT_EQ(pool_->use().used_bytes, 0U) << "at once";
  ASSERT_TRUE(lost.wait());
  EXPECT_EQ(reader->resolve(held.identity()).status().code(), Errc::kUnavailable);
  EXPECT_EQ(held.bytes().size(), 10'000U) << "the mapping is left";
}

TEST_F(SegmentsTest, ResolvingFailsAfterTheServerHasEnded) {
  serve();
  const auto reader = connected(1);
  const BufferIdentity identity = sent(10'000, 1, 1);
  server_.reset();
  EXPECT_EQ(reader->resolve(identity).status().code(), Errc::kUnavailable);
  EXPECT_TRUE(becomes_empty());
}

TEST_F(SegmentsTest, BuffersOutliveTheirPool) {
  serve();
  const Buffer buffer = patterned(*pool_, 10'000, 1).value();
  bool called = false;
  pool_->when_lendable(buffer, 9, [&] { called = true; });
  EXPECT_TRUE(called) << "an unknown reader is no reason to wait";
  pool_->when_room(options_.max_bytes, [] { ADD_FAILURE() << "called after the end of the pool"; });
  server_.reset();
  pool_.reset();
  EXPECT_TRUE(has_pattern(buffer, 1));
}

TEST_F(SegmentsTest, SegmentsOutOfAReadersReachAreNotKept) {
  SegmentPoolOptions options = small_pool();
  options.max_free_bytes = 0;
  serve(options);
  const auto reader = connected(1);
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(has_pattern(reader->resolve(sent(10'000 + i, i, 1)).value(), i));
  }
  EXPECT_TRUE(becomes_empty());
  EXPECT_EQ(mapped_segments(), 0);
}

TEST_F(SegmentsTest, BuffersOfOtherPoolsAreNotLent) {
  serve();
  add(1);
  const Buffer heap = Buffer::copy_of(std::as_bytes(std::span("abc")));
  EXPECT_EQ(pool_->lend(heap, 1).code(), Errc::kInvalidArgument);
  EXPECT_EQ(pool_->lend(Buffer(), 1).code(), Errc::kInvalidArgument);
  const Buffer own = patterned(*pool_, 100, 1).value();
  const Buffer forged = Buffer::of_pool(nullptr, {}, {7, 55, 0, 0, 0, DType::kU8});
  EXPECT_EQ(pool_->lend(forged, 1).code(), Errc::kInvalidArgument);
}

TEST_F(SegmentsTest, ReadersAreBounded) {
  serve();
  for (std::uint32_t i = 0; i < kMaxSegmentReaders; ++i) {
    add(i);
  }
  EXPECT_EQ(pool_->add_reader({kMaxSegmentReaders, token_of(99), 1}).code(),
            Errc::kResourceExhausted);
  pool_->drop_reader(5);
  EXPECT_TRUE(pool_->add_reader({kMaxSegmentReaders, token_of(99), 1}).ok());
}

// A reader in the place of an earlier one does not inherit its loans.
TEST_F(SegmentsTest, LoansOfAnEarlierReaderAreNotThoseOfALaterOne) {
  serve();
  add(1);
  const Buffer buffer = patterned(*pool_, 10'000, 1).value();
  ASSERT_TRUE(pool_->lend(buffer, 1).ok());
  ASSERT_TRUE(pool_->lend(buffer, 1).ok());
  pool_->drop_reader(1);
  const auto reader = connected(2);
  EXPECT_EQ(reader->resolve(buffer.identity()).status().code(), Errc::kNotFound);
  ASSERT_TRUE(pool_->lend(buffer, 2).ok());
  EXPECT_TRUE(reader->resolve(buffer.identity()).ok());
  EXPECT_EQ(reader->resolve(buffer.identity()).status().code(), Errc::kNotFound);
}

// -- the memory
// ------------------------------------------------------------------------------------

TEST(SegmentMemory, AReceiverCannotChangeIt) {
  const SegmentMemory made = SegmentMemory::make(8192).value();
  made.writable_bytes()[5] = std::byte{9};
  // A receiver has the descriptor, and may open it again for writing.
  const std::string again = "/proc/self/fd/" + std::to_string(made.descriptor());
  const UniqueFd opened(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  for (const int descriptor : {made.descriptor(), opened.get()}) {
    ASSERT_GE(descriptor, 0);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
    void* const read = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, descriptor, 0);
    ASSERT_NE(read, MAP_FAILED);
    EXPECT_NE(::mprotect(read, 4096, PROT_READ | PROT_WRITE), 0);
    ::munmap(read, 4096);
    EXPECT_LT(::pwrite(descriptor, "x", 1, 0), 0);
    EXPECT_NE(::ftruncate(descriptor, 4096), 0);
    EXPECT_NE(::ftruncate(descriptor, 1 << 20), 0);
    EXPECT_NE(::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  }
  EXPECT_EQ(made.bytes()[5], std::byte{9});
}

TEST(SegmentMemory, AReaderRefusesMemoryThatMayChange) {
  const auto memory_file = [](std::uint64_t size, int seals) {
    UniqueFd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  EXPECT_TRUE(SegmentMemory::map(memory_file(8192, kAll), 4096).ok());
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL}) {
    EXPECT_EQ(SegmentMemory::map(memory_file(8192, kAll & ~missing), 4096).status().code(),
              Errc::kCorruptData);
  }
  for (const std::uint64_t capacity :
       {std::uint64_t{0}, std::uint64_t{8192}, std::numeric_limits<std::uint64_t>::max() - 4095}) {
    EXPECT_EQ(SegmentMemory::map(memory_file(8192, kAll), capacity).status().code(),
              Errc::kCorruptData)
        << capacity;
  }
  // The words of the loans follow the bytes, so these have to be whole pages.
  EXPECT_EQ(SegmentMemory::map(memory_file(4096 + 3, kAll), 3).status().to_string(),
            "corrupt_data: segment of 3 bytes: not whole pages");
  EXPECT_FALSE(SegmentMemory::map(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), 4096).ok());
  EXPECT_FALSE(SegmentMemory::map(UniqueFd(), 4096).ok());
}

// -- threads
// ---------------------------------------------------------------------------------------

// Each thread allocates, lends, resolves and drops; half of the buffers are dropped by another one.
TEST_F(SegmentsTest, ManyThreadsUseOnePoolAndOneReader) {
  SegmentPoolOptions options = small_pool();
  options.max_free_bytes = 1 << 20;
  serve(options);
  const auto first = connected(1);
  const auto second = connected(2);
  std::mutex mutex;
  std::vector<Buffer> shared;
  const auto work = [&](std::uint64_t seed) {
    RandomStream random(seed);
    for (int i = 0; i < 400; ++i) {
      const std::uint32_t number = 1 + static_cast<std::uint32_t>(random.below(2));
      const std::size_t size = random.below(4) == 0 ? random.below(100'000) : random.below(2000);
      const Result<Buffer> made = patterned(*pool_, size, seed + static_cast<std::uint64_t>(i));
      if (!made.ok()) {
        Event room;
        pool_->when_room(size, [&] { room.set(); });
        {
          const std::lock_guard lock(mutex);
          shared.clear();  // which may be what fills the pool
        }
        ASSERT_TRUE(room.wait());
        continue;
      }
      ASSERT_TRUE(pool_->lend(made.value(), number).ok());
      const Result<Buffer> read = (number == 1 ? first : second)->resolve(made.value().identity());
      ASSERT_TRUE(read.ok()) << read.status().to_string();
      ASSERT_TRUE(has_pattern(read.value(), seed + static_cast<std::uint64_t>(i)));
      const std::lock_guard lock(mutex);
      shared.push_back(read.value());
      if (shared.size() > 20) {
        shared.erase(shared.begin(), shared.begin() + 10);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t seed : {1000, 2000, 3000, 4000}) {
    threads.emplace_back(work, seed);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  shared.clear();
  EXPECT_TRUE(becomes_empty());
  EXPECT_EQ(pool_->lent_bytes(1) + pool_->lent_bytes(2), 0U);
}

}  // namespace
}  // namespace tidemill::transport
