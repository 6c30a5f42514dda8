// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_ledger.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::transport {
namespace {

constexpr std::uint64_t kSharedBytes = 8192;
constexpr std::uint64_t kSmall = kSharedBytes / kSharedFraction;

SegmentPoolOptions ledger_options(std::uint64_t max_bytes, std::uint64_t max_free_bytes) {
  SegmentPoolOptions options;
  options.pool = 5;
  options.max_bytes = max_bytes;
  options.max_free_bytes = max_free_bytes;
  options.shared_segment_bytes = kSharedBytes;
  return options;
}

Placement placed(SegmentLedger& ledger, std::uint64_t size) {
  const Result<Placement> placement = ledger.place(size);
  EXPECT_TRUE(placement.ok()) << placement.status().to_string();
  if (!placement.ok()) {
    return {};
  }
  if (placement.value().make) {
    ledger.made(placement.value());
  }
  return placement.value();
}

TEST(SegmentLedger, SmallBuffersShareASegment) {
  SegmentLedger ledger(ledger_options(1 << 20, 1 << 20));
  const Placement first = placed(ledger, 10);
  const Placement second = placed(ledger, 65);
  const Placement third = placed(ledger, 0);
  EXPECT_EQ(first.offset, 0U);
  EXPECT_EQ(second.offset, 64U);
  EXPECT_EQ(third.offset, 192U);
  EXPECT_EQ(first.segment, third.segment);
  EXPECT_EQ(ledger.use().used_bytes, kSharedBytes);
  const Placement large = placed(ledger, kSmall + 1);
  EXPECT_NE(large.segment, first.segment);
  EXPECT_EQ(large.capacity, 4096U);
}

TEST(SegmentLedger, ASegmentIsUsedAgainWhenTheLastReferenceIsGone) {
  SegmentLedger ledger(ledger_options(1 << 20, 1 << 20));
  const ReaderKey reader = ledger.add_reader(1 << 20);
  const Placement buffer = placed(ledger, 5000);
  EXPECT_EQ(ledger.lend(reader, buffer.segment).value(), 1U);
  EXPECT_EQ(ledger.lend(reader, buffer.segment).value(), 2U);
  ledger.drop_handle(buffer.segment);
  ASSERT_TRUE(ledger.give_back(reader, buffer.segment, 0, 1).ok());
  EXPECT_TRUE(ledger.take_events().empty()) << "one loan is left";
  ASSERT_TRUE(ledger.give_back(reader, buffer.segment, 0, 1).ok());
  const std::vector<SegmentEvent> events = ledger.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, SegmentEvent::Kind::kRecycled);
  EXPECT_EQ(ledger.use().used_bytes, 0U);
  EXPECT_EQ(ledger.lent_bytes(reader), 0U);
  const Placement again = placed(ledger, 5000);
  EXPECT_EQ(again.segment, buffer.segment);
  EXPECT_EQ(again.generation, 1U);
  EXPECT_FALSE(again.make);
}

TEST(SegmentLedger, RefusesLoansThatAreNotHeld) {
  SegmentLedger ledger(ledger_options(1 << 20, 1 << 20));
  const ReaderKey reader = ledger.add_reader(1 << 20);
  const ReaderKey other = ledger.add_reader(1 << 20);
  const std::uint64_t segment = placed(ledger, 5000).segment;
  ASSERT_TRUE(ledger.lend(reader, segment).ok());
  const std::tuple<ReaderKey, std::uint64_t, std::uint32_t, std::uint32_t> cases[] = {
      {reader, segment, 0, 2},     {reader, segment, 0, 0},
      {reader, segment, 1, 1},     {other, segment, 0, 1},
      {reader, segment + 1, 0, 1}, {reader, segment, 0, std::numeric_limits<std::uint32_t>::max()}};
  for (const auto& [from, number, generation, count] : cases) {
    EXPECT_EQ(ledger.give_back(from, number, generation, count).code(), Errc::kInvalidArgument)
        << from << ' ' << number << ' ' << generation << ' ' << count;
  }
  ASSERT_TRUE(ledger.give_back(reader, segment, 0, 1).ok());
  EXPECT_FALSE(ledger.give_back(reader, segment, 0, 1).ok()) << "returned twice";
  EXPECT_EQ(ledger.map(other, segment).code(), Errc::kNotFound);
  EXPECT_EQ(ledger.unmap(reader, segment).code(), Errc::kInvalidArgument);
}

TEST(SegmentLedger, FreeSegmentsMakeRoomForOthers) {
  SegmentLedger ledger(ledger_options(24'000, 24'000));
  const Placement first = placed(ledger, 8192);
  const Placement second = placed(ledger, 8192);
  EXPECT_EQ(ledger.place(8192).status().code(), Errc::kResourceExhausted);
  ledger.drop_handle(first.segment);
  static_cast<void>(ledger.take_events());
  EXPECT_FALSE(placed(ledger, 8192).make) << "the same capacity";
  ledger.drop_handle(first.segment);
  static_cast<void>(ledger.take_events());
  EXPECT_TRUE(placed(ledger, 12'000).make) << "another one";
  const std::vector<SegmentEvent> events = ledger.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, SegmentEvent::Kind::kRetired);
  EXPECT_EQ(events[0].segment, first.segment);
  static_cast<void>(second);
}

TEST(SegmentLedger, MappedSegmentsAreHeldUntilReadersHaveUnmappedThem) {
  SegmentLedger ledger(ledger_options(16'384, 0));
  const ReaderKey reader = ledger.add_reader(1 << 20);
  const std::uint64_t segment = placed(ledger, 16'384).segment;
  ASSERT_TRUE(ledger.lend(reader, segment).ok());
  ASSERT_TRUE(ledger.map(reader, segment).ok());
  EXPECT_EQ(ledger.map(reader, segment).code(), Errc::kInvalidArgument) << "mapped twice";
  ledger.drop_handle(segment);
  ASSERT_TRUE(ledger.give_back(reader, segment, 0, 1).ok());
  EXPECT_EQ(ledger.take_events().back().readers, std::vector<ReaderKey>{reader});
  EXPECT_EQ(ledger.use().retired_bytes, 16'384U);
  EXPECT_FALSE(ledger.make_room(4096));
  ASSERT_TRUE(ledger.unmap(reader, segment).ok());
  EXPECT_EQ(ledger.use().segments, 0U);
  EXPECT_TRUE(ledger.make_room(4096));
}

TEST(SegmentLedger, SizesDoNotOverflow) {
  SegmentLedger ledger(ledger_options(std::uint64_t{1} << 40U, 0));
  for (const std::uint64_t size :
       {std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max() - 4096,
        (std::uint64_t{1} << 40U) + 1}) {
    EXPECT_EQ(ledger.place(size).status().code(), Errc::kResourceExhausted) << size;
    EXPECT_FALSE(ledger.make_room(size)) << size;
    EXPECT_FALSE(ledger.can_ever_place(size)) << size;
  }
}

// A naive account of what a ledger must do, which looks at everything after each operation.
class LedgerModel {
public:
  explicit LedgerModel(std::uint64_t seed)
      : random_(seed), options_(ledger_options(200'000, 60'000)), ledger_(options_) {}

  void step() {
    switch (random_.below(12)) {
      case 0:
      case 1:
      case 2: place(); break;
      case 3:
      case 4: drop_handle(); break;
      case 5:
      case 6: lend(); break;
      case 7:
      case 8: give_back(); break;
      case 9: map(); break;
      case 10: unmap(); break;
      default: change_readers();
    }
    follow_events();
    check();
  }

  void finish() {
    while (!handles_.empty()) {
      drop_handle();
      follow_events();
      check();
    }
    while (!readers_.empty()) {
      drop_reader(*readers_.begin());
      follow_events();
      check();
    }
    EXPECT_EQ(ledger_.use().used_bytes, 0U);
    EXPECT_EQ(ledger_.use().retired_bytes, 0U);
  }

private:
  enum class State { kUsed, kFree, kRetired };
  struct Segment {
    std::uint64_t capacity = 0;
    State state = State::kUsed;
    std::uint32_t generation = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // begin, end
    std::map<ReaderKey, std::uint32_t> given;                     // in this generation
    std::set<ReaderKey> mapped;
  };
  struct Loan {
    ReaderKey reader;
    std::uint64_t segment;
  };
  static constexpr std::uint64_t kMaxLent = 50'000;

  template <class Values>
  std::size_t any_of(const Values& values) {
    return random_.below(values.size());
  }

  [[nodiscard]] std::uint64_t lent_to(ReaderKey reader) const {
    std::set<std::uint64_t> segments;
    for (const Loan& loan : loans_) {
      if (loan.reader == reader) {
        segments.insert(loan.segment);
      }
    }
    std::uint64_t bytes = 0;
    for (const std::uint64_t segment : segments) {
      bytes += segments_.at(segment).capacity;
    }
    return bytes;
  }

  [[nodiscard]] std::uint32_t held(ReaderKey reader, std::uint64_t segment) const {
    return static_cast<std::uint32_t>(std::ranges::count_if(loans_, [&](const Loan& loan) {
      return loan.reader == reader && loan.segment == segment;
    }));
  }

  [[nodiscard]] bool referenced(std::uint64_t segment) const {
    return std::ranges::count(handles_, segment) > 0 ||
           std::ranges::any_of(loans_, [&](const Loan& loan) { return loan.segment == segment; });
  }

  void place() {
    const std::uint64_t size = random_.below(3) == 0 ? random_.below(30'000) : random_.below(1200);
    const bool room = ledger_.make_room(size);
    follow_events();
    const Result<Placement> placement = ledger_.place(size);
    ASSERT_EQ(placement.ok(), room) << size;
    if (!placement.ok()) {
      return;
    }
    const Placement& at = placement.value();
    if (at.make) {
      ASSERT_FALSE(segments_.contains(at.segment));
      if (random_.below(10) == 0) {
        ledger_.abandon(at);
        return;
      }
      ledger_.made(at);
      segments_[at.segment].capacity = at.capacity;
    }
    Segment& segment = segments_.at(at.segment);
    ASSERT_NE(segment.state, State::kRetired);
    segment.state = State::kUsed;
    ASSERT_EQ(at.generation, segment.generation);
    ASSERT_LE(at.offset + size, segment.capacity);
    for (const auto& [begin, end] : segment.ranges) {
      ASSERT_TRUE(at.offset >= end || at.offset + std::max<std::uint64_t>(size, 1) <= begin);
    }
    segment.ranges.emplace_back(at.offset, at.offset + std::max<std::uint64_t>(size, 1));
    handles_.push_back(at.segment);
  }

  void drop_handle() {
    if (!handles_.empty()) {
      const auto at = handles_.begin() + static_cast<std::ptrdiff_t>(any_of(handles_));
      const std::uint64_t segment = *at;
      handles_.erase(at);
      ledger_.drop_handle(segment);
    }
  }

  void lend() {
    if (handles_.empty() || readers_.empty()) {
      return;
    }
    const std::uint64_t number = handles_[any_of(handles_)];
    const ReaderKey reader =
        *std::next(readers_.begin(), static_cast<std::ptrdiff_t>(any_of(readers_)));
    const std::uint64_t capacity = segments_.at(number).capacity;
    const bool fits = held(reader, number) > 0 || lent_to(reader) + capacity <= kMaxLent;
    ASSERT_EQ(ledger_.can_lend(reader, number), fits);
    const Result<std::uint32_t> lent = ledger_.lend(reader, number);
    ASSERT_EQ(lent.ok(), fits) << lent.status().to_string();
    if (!fits) {
      return;
    }
    std::uint32_t& given = segments_.at(number).given[reader];
    ASSERT_EQ(lent.value(), ++given);
    if (random_.below(5) == 0) {
      ASSERT_EQ(ledger_.take_back(reader, number), --given);
    } else {
      loans_.push_back({reader, number});
    }
  }

  void give_back() {
    if (loans_.empty()) {
      return;
    }
    const Loan loan = loans_[any_of(loans_)];
    const std::uint32_t holds = held(loan.reader, loan.segment);
    const std::uint32_t generation = segments_.at(loan.segment).generation;
    ASSERT_FALSE(ledger_.give_back(loan.reader, loan.segment, generation, holds + 1).ok());
    ASSERT_FALSE(ledger_.give_back(loan.reader, loan.segment, generation + 1, 1).ok());
    auto count = static_cast<std::uint32_t>(1 + random_.below(holds));
    ASSERT_TRUE(ledger_.give_back(loan.reader, loan.segment, generation, count).ok());
    std::erase_if(loans_, [&](const Loan& other) {
      return other.reader == loan.reader && other.segment == loan.segment && count > 0 &&
             count-- > 0;
    });
  }

  void map() {
    if (loans_.empty()) {
      return;
    }
    const Loan loan = loans_[any_of(loans_)];
    const bool first = segments_.at(loan.segment).mapped.insert(loan.reader).second;
    ASSERT_EQ(ledger_.map(loan.reader, loan.segment).ok(), first);
  }

  void unmap() {
    for (auto& [number, segment] : segments_) {
      if (segment.state == State::kRetired) {
        const ReaderKey reader = *segment.mapped.begin();
        segment.mapped.erase(reader);
        ASSERT_TRUE(ledger_.unmap(reader, number).ok());
        ASSERT_FALSE(ledger_.unmap(reader, number).ok());
        forget_unmapped();
        return;
      }
    }
  }

  void change_readers() {
    if (readers_.size() < 3 || random_.below(3) > 0) {
      readers_.insert(ledger_.add_reader(kMaxLent));
    } else {
      drop_reader(*std::next(readers_.begin(), static_cast<std::ptrdiff_t>(any_of(readers_))));
    }
  }

  void drop_reader(ReaderKey reader) {
    readers_.erase(reader);
    std::erase_if(loans_, [&](const Loan& loan) { return loan.reader == reader; });
    for (auto& [number, segment] : segments_) {
      segment.mapped.erase(reader);
    }
    forget_unmapped();
    ledger_.drop_reader(reader);
  }

  void forget_unmapped() {
    std::erase_if(segments_, [](const auto& entry) {
      return entry.second.state == State::kRetired && entry.second.mapped.empty();
    });
  }

  void follow_events() {
    for (const SegmentEvent& event : ledger_.take_events()) {
      Segment& segment = segments_.at(event.segment);
      ASSERT_FALSE(referenced(event.segment)) << event.segment;
      if (event.kind == SegmentEvent::Kind::kRecycled) {
        ASSERT_EQ(segment.state, State::kUsed);
        ASSERT_EQ(event.generation, ++segment.generation);
        segment.state = State::kFree;
        segment.ranges.clear();
        segment.given.clear();
        continue;
      }
      ASSERT_EQ(segment.state, State::kFree);
      ASSERT_EQ(std::set<ReaderKey>(event.readers.begin(), event.readers.end()), segment.mapped);
      segment.state = State::kRetired;
      forget_unmapped();
    }
  }

  void check() const {
    SegmentPoolUse expected;
    expected.segments = segments_.size();
    for (const auto& [number, segment] : segments_) {
      ASSERT_EQ(segment.state == State::kUsed, referenced(number)) << number;
      ASSERT_EQ(ledger_.in_use(number, segment.generation), segment.state == State::kUsed);
      std::uint64_t& bytes = segment.state == State::kUsed   ? expected.used_bytes
                             : segment.state == State::kFree ? expected.free_bytes
                                                             : expected.retired_bytes;
      bytes += segment.capacity;
    }
    const SegmentPoolUse& use = ledger_.use();
    ASSERT_EQ(use.used_bytes, expected.used_bytes);
    ASSERT_EQ(use.free_bytes, expected.free_bytes);
    ASSERT_EQ(use.retired_bytes, expected.retired_bytes);
    ASSERT_EQ(use.segments, expected.segments);
    ASSERT_LE(use.held_bytes(), options_.max_bytes);
    ASSERT_LE(use.free_bytes, options_.max_free_bytes);
    for (const ReaderKey reader : readers_) {
      ASSERT_EQ(ledger_.lent_bytes(reader), lent_to(reader));
    }
  }

  RandomStream random_;
  SegmentPoolOptions options_;
  SegmentLedger ledger_;
  std::map<std::uint64_t, Segment> segments_;
  std::vector<std::uint64_t> handles_;  // the segment of each
  std::vector<Loan> loans_;
  std::set<ReaderKey> readers_;
};

TEST(SegmentLedger, DoesWhatAModelDoes) {
  for (std::uint64_t seed = 1; seed <= 40 && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LedgerModel model(seed);
    for (int i = 0; i < 1500 && !::testing::Test::HasFatalFailure(); ++i) {
      model.step();
    }
    model.finish();
  }
}

}  // namespace
}  // namespace tidemill::transport
