// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_ledger.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.hpp"

namespace tidemill::transport {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

// -- buffers
// ---------------------------------------------------------------------------------------

SegmentLedger::Fit SegmentLedger::fit_of(std::uint64_t size) const {
  if (size <= options_.shared_segment_bytes / kSharedFraction) {
    return {options_.shared_segment_bytes, true};
  }
  // Few different capacities, so that buffers of similar sizes can use the same segments. At most
  // an eighth is lost.
  const std::uint64_t unit = std::max(kPageBytes, std::bit_floor(size) / 8);
  return {rounded_up(size, unit), false};
}

bool SegmentLedger::fits_into_open(std::uint64_t size) const {
  if (open_ == 0) {
    return false;
  }
  const Segment& open = segments_.at(open_);
  return size <= open.capacity - open.placed_bytes;
}

std::optional<std::uint64_t> SegmentLedger::find_free(std::uint64_t capacity) const {
  const auto after = free_by_size_.lower_bound({capacity + 1, 0});
  if (after == free_by_size_.begin() || std::prev(after)->first.first != capacity) {
    return std::nullopt;
  }
  return std::prev(after)->second;
}

bool SegmentLedger::can_ever_place(std::uint64_t size) const {
  return size <= options_.max_bytes && fit_of(size).capacity <= options_.max_bytes;
}

bool SegmentLedger::make_room_for_segment(std::uint64_t capacity) {
  if (find_free(capacity)) {
    return true;
  }
  if (capacity > options_.max_bytes - use_.used_bytes) {
    return false;
  }
  // Retired segments end soon, so no others are retired for their bytes.
  const auto lacks_room = [&](std::uint64_t bytes, std::uint64_t segments) {
    return capacity > options_.max_bytes - bytes || segments >= kMaxSegments;
  };
  while (!free_by_age_.empty() && lacks_room(use_.used_bytes + use_.free_bytes, segments_.size())) {
    retire(free_by_age_.begin()->second);
  }
  return !lacks_room(use_.held_bytes(), segments_.size());
}

bool SegmentLedger::make_room(std::uint64_t size) {
  if (size > options_.max_bytes) {
    return false;
  }
  const Fit fit = fit_of(size);
  return (fit.shared && fits_into_open(size)) || make_room_for_segment(fit.capacity);
}

Status SegmentLedger::no_room(std::uint64_t capacity) const {
  return {Errc::kResourceExhausted, "shared memory: no room for a segment of " +
                                        std::to_string(capacity) +
                                        " bytes: " + std::to_string(use_.used_bytes) +
                                        " bytes are in use, " + std::to_string(use_.retired_bytes) +
                                        " bytes wait for readers to unmap them, the limit is " +
                                        std::to_string(options_.max_bytes) + " bytes and " +
                                        std::to_string(kMaxSegments) + " segments"};
}

Placement SegmentLedger::use_segment(std::uint64_t number, std::uint64_t size, const Fit& fit) {
  Segment& segment = segments_.at(number);
  const std::uint64_t offset = segment.placed_bytes;
  segment.placed_bytes =
      fit.shared ? offset + rounded_up(std::max<std::uint64_t>(size, 1), kBufferAlignment)
                 : segment.capacity;
  ++segment.handles;
  return {number, segment.generation, offset, segment.capacity, segment.state == State::kMaking};
}

Result<Placement> SegmentLedger::place(std::uint64_t size) {
  if (!can_ever_place(size)) {
    return no_room(size);
  }
  const Fit fit = fit_of(size);
  if (fit.shared && fits_into_open(size)) {
    return use_segment(open_, size, fit);
  }
  if (!make_room_for_segment(fit.capacity)) {
    return no_room(fit.capacity);
  }
  const std::optional<std::uint64_t> free = find_free(fit.capacity);
  const std::uint64_t number = free.value_or(last_segment_ + 1);
  if (free) {
    Segment& segment = segments_.at(number);
    remove_free(segment);
    segment.state = State::kUsed;
    if (fit.shared) {
      open_ = number;
    }
  } else {
    last_segment_ = number;
    segments_[number].capacity = fit.capacity;
    ++use_.segments;
  }
  use_.used_bytes += fit.capacity;
  return use_segment(number, size, fit);
}

void SegmentLedger::made(const Placement& placement) {
  Segment& segment = segments_.at(placement.segment);
  TIDEMILL_CHECK(segment.state == State::kMaking) << placement.segment;
  segment.state = State::kUsed;
  if (segment.placed_bytes < segment.capacity) {
    open_ = placement.segment;
  }
}

void SegmentLedger::abandon(const Placement& placement) {
  const auto found = segments_.find(placement.segment);
  TIDEMILL_CHECK(found != segments_.end() && found->second.state == State::kMaking)
      << placement.segment;
  use_.used_bytes -= found->second.capacity;
  --use_.segments;
  segments_.erase(found);
}

bool SegmentLedger::in_use(std::uint64_t segment, std::uint32_t generation) const {
  const auto found = segments_.find(segment);
  return found != segments_.end() && found->second.state == State::kUsed &&
         found->second.generation == generation;
}

void SegmentLedger::drop_handle(std::uint64_t segment) {
  Segment& dropped = segments_.at(segment);
  TIDEMILL_CHECK(dropped.handles > 0) << segment;
  --dropped.handles;
  free_if_unused(segment);
}

void SegmentLedger::remove_free(const Segment& segment) {
  free_by_size_.erase({segment.capacity, segment.freed_at});
  free_by_age_.erase(segment.freed_at);
  use_.free_bytes -= segment.capacity;
}

void SegmentLedger::free_if_unused(std::uint64_t number) {
  Segment& segment = segments_.at(number);
  if (segment.handles > 0 || segment.loans > 0) {
    return;
  }
  if (open_ == number) {
    open_ = 0;
  }
  segment.state = State::kFree;
  segment.placed_bytes = 0;
  segment.loans_of.clear();
  segment.freed_at = ++last_freed_;
  use_.used_bytes -= segment.capacity;
  use_.free_bytes += segment.capacity;
  free_by_size_.emplace(FreeKey{segment.capacity, segment.freed_at}, number);
  free_by_age_.emplace(segment.freed_at, number);
  if (segment.generation == std::numeric_limits<std::uint32_t>::max()) {
    retire(number);  // there is no next generation
  } else {
    ++segment.generation;
    events_.push_back({SegmentEvent::Kind::kRecycled, number, segment.generation, {}});
  }
  while (use_.free_bytes > options_.max_free_bytes) {
    retire(free_by_age_.begin()->second);
  }
}

void SegmentLedger::retire(std::uint64_t number) {
  Segment& segment = segments_.at(number);
  remove_free(segment);
  segment.state = State::kRetired;
  use_.retired_bytes += segment.capacity;
  events_.push_back({SegmentEvent::Kind::kRetired,
                     number,
                     segment.generation,
                     {segment.mapped_by.begin(), segment.mapped_by.end()}});
  end_if_unmapped(number);
}

void SegmentLedger::end_if_unmapped(std::uint64_t number) {
  const auto found = segments_.find(number);
  if (found->second.state == State::kRetired && found->second.mapped_by.empty()) {
    use_.retired_bytes -= found->second.capacity;
    --use_.segments;
    segments_.erase(found);
  }
}

// -- readers
// ---------------------------------------------------------------------------------------

ReaderKey SegmentLedger::add_reader(std::uint64_t max_lent_bytes) {
  readers_[++last_reader_].max_lent_bytes = max_lent_bytes;
  return last_reader_;
}

void SegmentLedger::drop_reader(ReaderKey reader) {
  const auto found = readers_.find(reader);
  if (found == readers_.end()) {
    return;
  }
  // First the mappings, so that nothing asks the reader to unmap what becomes free below.
  for (const std::uint64_t number : found->second.mapped) {
    segments_.at(number).mapped_by.erase(reader);
    end_if_unmapped(number);
  }
  const std::set<std::uint64_t> lent = found->second.segments;
  for (const std::uint64_t number : lent) {
    const Loans& loans = segments_.at(number).loans_of.at(reader);
    return_loans(number, reader, loans.lent - loans.returned);
  }
  readers_.erase(found);
}

bool SegmentLedger::can_lend(ReaderKey reader, std::uint64_t segment) const {
  const Reader& holder = readers_.at(reader);
  const std::uint64_t capacity = segments_.at(segment).capacity;
  return holder.segments.contains(segment) || capacity > holder.max_lent_bytes ||
         capacity <= holder.max_lent_bytes - holder.lent_bytes;
}

Result<std::uint32_t> SegmentLedger::lend(ReaderKey reader, std::uint64_t segment) {
  Segment& lent = segments_.at(segment);
  TIDEMILL_CHECK(lent.state == State::kUsed) << segment;
  Reader& holder = readers_.at(reader);
  const bool first = !holder.segments.contains(segment);
  if (first && lent.capacity > holder.max_lent_bytes) {
    return invalid_argument("a segment of " + std::to_string(lent.capacity) +
                            " bytes is larger than what the reader may keep (" +
                            std::to_string(holder.max_lent_bytes) + " bytes)");
  }
  Loans& loans = lent.loans_of[reader];
  if (!can_lend(reader, segment) || loans.lent == std::numeric_limits<std::uint32_t>::max()) {
    return Status(Errc::kResourceExhausted,
                  "the reader keeps " + std::to_string(holder.lent_bytes) + " of " +
                      std::to_string(holder.max_lent_bytes) + " bytes; a segment has " +
                      std::to_string(lent.capacity) + " bytes");
  }
  if (first) {
    holder.segments.insert(segment);
    holder.lent_bytes += lent.capacity;
  }
  ++lent.loans;
  return ++loans.lent;
}

void SegmentLedger::forget_if_returned(std::uint64_t number, ReaderKey reader) {
  const Segment& segment = segments_.at(number);
  const Loans& loans = segment.loans_of.at(reader);
  if (loans.returned == loans.lent) {
    Reader& holder = readers_.at(reader);
    holder.segments.erase(number);
    holder.lent_bytes -= segment.capacity;
  }
}

void SegmentLedger::return_loans(std::uint64_t number, ReaderKey reader, std::uint32_t count) {
  Segment& segment = segments_.at(number);
  segment.loans_of.at(reader).returned += count;
  segment.loans -= count;
  forget_if_returned(number, reader);
  free_if_unused(number);
}

std::uint32_t SegmentLedger::take_back(ReaderKey reader, std::uint64_t segment) {
  Segment& lent = segments_.at(segment);
  Loans& loans = lent.loans_of[reader];
  TIDEMILL_CHECK(loans.lent > loans.returned) << segment;
  --lent.loans;
  --loans.lent;
  const std::uint32_t result = loans.lent;
  forget_if_returned(segment, reader);
  free_if_unused(segment);
  return result;
}

Status SegmentLedger::give_back(ReaderKey reader, std::uint64_t segment, std::uint32_t generation,
                                std::uint32_t count) {
  const auto found = segments_.find(segment);
  if (found != segments_.end() && found->second.generation == generation) {
    const auto loans = found->second.loans_of.find(reader);
    if (loans != found->second.loans_of.end() && count > 0 &&
        count <= loans->second.lent - loans->second.returned) {
      return_loans(segment, reader, count);
      return {};
    }
  }
  return invalid_argument("returned " + std::to_string(count) + " loans of segment " +
                          std::to_string(segment) + "." + std::to_string(generation) +
                          ", more than it holds");
}

Status SegmentLedger::map(ReaderKey reader, std::uint64_t segment) {
  Reader& holder = readers_.at(reader);
  if (!holder.segments.contains(segment)) {
    return {Errc::kNotFound, "segment " + std::to_string(segment) + " is not lent to this reader"};
  }
  if (!holder.mapped.insert(segment).second) {
    return invalid_argument("asked twice for segment " + std::to_string(segment));
  }
  segments_.at(segment).mapped_by.insert(reader);
  return {};
}

Status SegmentLedger::unmap(ReaderKey reader, std::uint64_t segment) {
  if (readers_.at(reader).mapped.erase(segment) == 0) {
    return invalid_argument("unmapped segment " + std::to_string(segment) +
                            ", which it has not mapped");
  }
  segments_.at(segment).mapped_by.erase(reader);
  end_if_unmapped(segment);
  return {};
}

}  // namespace tidemill::transport
