// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_store.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.hpp"

namespace tidemill::transport {
namespace {

Status named(const BufferIdentity& identity, Errc code, const std::string& fact) {
  return {code, to_string(identity) + ": " + fact};
}

Status dropped_reader() {
  return {Errc::kUnavailable, "the reader was dropped"};
}

// Takes the same time whichever bytes differ.
bool equal_tokens(const ReaderToken& a, const ReaderToken& b) {
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= a[i] ^ b[i];
  }
  return difference == std::byte{0};
}

}  // namespace

// What a buffer of the pool owns.
class SegmentStore::Handle {
public:
  Handle(std::shared_ptr<SegmentStore> store, std::uint64_t segment)
      : store_(std::move(store)), segment_(segment) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { store_->drop_handle(segment_); }

private:
  std::shared_ptr<SegmentStore> store_;
  std::uint64_t segment_;
};

SegmentStore::SegmentStore(const SegmentPoolOptions& options)
    : options_(options), ledger_(options) {}

// -- events
// ----------------------------------------------------------------------------------------

void SegmentStore::notify(const ReaderNotice& notice) {
  notices_.push_back(notice);
  if (wake_) {
    wake_();
  }
}

void SegmentStore::follow(const SegmentEvent& event, Leftovers& leftovers) {
  const auto found = memory_.find(event.segment);
  TIDEMILL_CHECK(found != memory_.end()) << event.segment;
  if (event.kind == SegmentEvent::Kind::kRecycled) {
    for (std::size_t index = 0; index < kMaxSegmentReaders; ++index) {
      found->second->set_loan_word(index, {event.generation, 0});
    }
    return;
  }
  leftovers.retired.push_back(std::move(found->second));
  memory_.erase(found);
  for (const ReaderKey reader : event.readers) {
    notify({ReaderNotice::Kind::kUnmap, reader, event.segment});
  }
}

void SegmentStore::settle(Lock lock) {
  Leftovers leftovers;
  // First the waiters: asking for room may retire segments.
  const auto waiting = std::stable_partition(waiters_.begin(), waiters_.end(),
                                             [](const Waiter& waiter) { return !waiter.ready(); });
  std::move(waiting, waiters_.end(), std::back_inserter(leftovers.ready));
  waiters_.erase(waiting, waiters_.end());
  for (const SegmentEvent& event : ledger_.take_events()) {
    follow(event, leftovers);
  }
  callbacks_running_ += leftovers.ready.size();
  lock.unlock();
  leftovers.retired.clear();
  if (leftovers.ready.empty()) {
    return;
  }
  for (const Waiter& waiter : leftovers.ready) {
    waiter.callback();
  }
  const std::size_t called = leftovers.ready.size();
  leftovers.ready.clear();  // may drop the last handle to a buffer, which needs the lock
  lock.lock();
  callbacks_running_ -= called;
  callbacks_done_.notify_all();
}

// -- buffers
// ---------------------------------------------------------------------------------------

Result<Placement> SegmentStore::place_and_make(std::uint64_t size) {
  Lock lock(mutex_);
  Result<Placement> placement = ledger_.place(size);
  settle(std::move(lock));
  if (!placement.ok() || !placement.value().make) {
    return placement;
  }
  Result<SegmentMemory> memory = SegmentMemory::make(placement.value().capacity);
  const Status made = memory.status();
  lock = Lock(mutex_);
  if (made.ok()) {
    memory_.emplace(placement.value().segment,
                    std::make_shared<const SegmentMemory>(std::move(memory).value()));
    ledger_.made(placement.value());
  } else {
    ledger_.abandon(placement.value());
  }
  settle(std::move(lock));
  if (!made.ok()) {
    return made.with_context("shared memory");
  }
  return placement;
}

Result<UnwrittenBuffer> SegmentStore::allocate_unwritten(std::uint64_t size, DType dtype) {
  TIDEMILL_ASSIGN_OR_RETURN(const Placement placement, place_and_make(size));
  auto handle = std::make_shared<const Handle>(shared_from_this(), placement.segment);
  const Lock lock(mutex_);
  const std::span<std::byte> bytes =
      memory_.at(placement.segment)->writable_bytes().subspan(placement.offset, size);
  const BufferIdentity identity{
      options_.pool, placement.segment, placement.generation, placement.offset, size, dtype};
  return UnwrittenBuffer{Buffer::of_pool(std::move(handle), bytes, identity), bytes};
}

void SegmentStore::drop_handle(std::uint64_t segment) {
  Lock lock(mutex_);
  ledger_.drop_handle(segment);
  settle(std::move(lock));
}

Status SegmentStore::lend(const Buffer& buffer, std::uint32_t reader) {
  const BufferIdentity& identity = buffer.identity();
  const Lock lock(mutex_);
  if (identity.pool != options_.pool || !buffer.resolved() ||
      !ledger_.in_use(identity.segment, identity.generation)) {
    return named(identity, Errc::kInvalidArgument,
                 "is not held by pool " + std::to_string(options_.pool));
  }
  const auto found = readers_.find(reader);
  if (found == readers_.end()) {
    return named(identity, Errc::kNotFound, "there is no reader " + std::to_string(reader));
  }
  if (found->second.state == ReaderState::kGone) {
    return named(identity, Errc::kUnavailable, "reader " + std::to_string(reader) + " is gone");
  }
  const Result<std::uint32_t> lent = ledger_.lend(found->second.key, identity.segment);
  if (!lent.ok()) {
    return lent.status().with_context(to_string(identity) + " for reader " +
                                      std::to_string(reader));
  }
  memory_.at(identity.segment)
      ->set_loan_word(found->second.index, {identity.generation, lent.value()});
  return {};
}

void SegmentStore::take_back(const Buffer& buffer, std::uint32_t reader) {
  const BufferIdentity& identity = buffer.identity();
  Lock lock(mutex_);
  const auto found = readers_.find(reader);
  if (found == readers_.end() || found->second.state == ReaderState::kGone) {
    return;
  }
  const std::uint32_t lent = ledger_.take_back(found->second.key, identity.segment);
  memory_.at(identity.segment)->set_loan_word(found->second.index, {identity.generation, lent});
  settle(std::move(lock));
}

// -- waiting
// ---------------------------------------------------------------------------------------

void SegmentStore::add_waiter(Waiter waiter) {
  Lock lock(mutex_);
  if (!callbacks_stopped_) {
    waiters_.push_back(std::move(waiter));
    settle(std::move(lock));
  }
}

void SegmentStore::when_room(std::uint64_t size, SegmentPool::Callback callback) {
  add_waiter({[this, size] { return !ledger_.can_ever_place(size) || ledger_.make_room(size); },
              std::move(callback)});
}

bool SegmentStore::lendable(const BufferIdentity& identity, std::uint32_t reader) const {
  const auto found = readers_.find(reader);
  return found == readers_.end() || found->second.state == ReaderState::kGone ||
         !ledger_.in_use(identity.segment, identity.generation) ||
         ledger_.can_lend(found->second.key, identity.segment);
}

void SegmentStore::when_lendable(const Buffer& buffer, std::uint32_t reader,
                                 SegmentPool::Callback callback) {
  add_waiter({[this, buffer, reader] { return lendable(buffer.identity(), reader); },
              std::move(callback)});
}

void SegmentStore::stop_callbacks() {
  Lock lock(mutex_);
  callbacks_stopped_ = true;
  std::vector<Waiter> dropped = std::exchange(waiters_, {});
  callbacks_done_.wait(lock, [this] { return callbacks_running_ == 0; });
  lock.unlock();
  dropped.clear();  // may drop the last handle to a buffer
}

// -- readers
// ---------------------------------------------------------------------------------------

Status SegmentStore::add_reader(const SegmentReaderGrant& grant) {
  const Lock lock(mutex_);
  const std::string location =
      "segment pool " + std::to_string(options_.pool) + ": reader " + std::to_string(grant.reader);
  if (readers_.contains(grant.reader)) {
    return invalid_argument(location + " exists; drop it first");
  }
  std::size_t index = 0;
  const auto taken = [&] {
    return std::ranges::any_of(readers_, [&](const auto& r) { return r.second.index == index; });
  };
  while (index < kMaxSegmentReaders && taken()) {
    ++index;
  }
  if (index == kMaxSegmentReaders) {
    return {Errc::kResourceExhausted, location + " is one too many (at most " +
                                          std::to_string(kMaxSegmentReaders) + "); drop another"};
  }
  for (const auto& [number, memory] : memory_) {
    memory->set_loan_word(index, {memory->loan_word(index).generation, 0});  // of an earlier reader
  }
  readers_[grant.reader] = {ledger_.add_reader(grant.max_lent_bytes), index, ReaderState::kExpected,
                            grant.token};
  return {};
}

void SegmentStore::drop_reader(std::uint32_t reader) {
  Lock lock(mutex_);
  const auto found = readers_.find(reader);
  if (found == readers_.end()) {
    return;
  }
  const Reader dropped = found->second;
  readers_.erase(found);
  if (dropped.state == ReaderState::kConnected) {
    notify({ReaderNotice::Kind::kDropped, dropped.key, 0});
  }
  ledger_.drop_reader(dropped.key);
  settle(std::move(lock));
}

SegmentStore::Reader* SegmentStore::find(ReaderKey key) {
  const auto found = std::ranges::find_if(readers_, [&](const auto& reader) {
    return reader.second.key == key && reader.second.state == ReaderState::kConnected;
  });
  return found == readers_.end() ? nullptr : &found->second;
}

Result<AdmittedReader> SegmentStore::admit(std::uint32_t reader, const ReaderToken& token) {
  const Lock lock(mutex_);
  const auto found = readers_.find(reader);
  if (found == readers_.end() || !equal_tokens(found->second.token, token)) {
    return Status(Errc::kNotFound,
                  "there is no reader " + std::to_string(reader) + " with this token");
  }
  if (found->second.state != ReaderState::kExpected) {
    return Status(Errc::kUnavailable, "reader " + std::to_string(reader) +
                                          " has connected before; drop it and add it again");
  }
  found->second.state = ReaderState::kConnected;
  return AdmittedReader{found->second.key, found->second.index};
}

void SegmentStore::hang_up(ReaderKey reader) {
  Lock lock(mutex_);
  Reader* const gone = find(reader);
  if (gone != nullptr) {
    gone->state = ReaderState::kGone;
    ledger_.drop_reader(reader);
    settle(std::move(lock));
  }
}

Result<std::shared_ptr<const SegmentMemory>> SegmentStore::map(ReaderKey reader,
                                                               std::uint64_t segment) {
  const Lock lock(mutex_);
  if (find(reader) == nullptr) {
    return dropped_reader();
  }
  TIDEMILL_RETURN_IF_ERROR(ledger_.map(reader, segment));
  return memory_.at(segment);
}

Status SegmentStore::give_back(ReaderKey reader, std::span<const ReturnedLoans> loans) {
  Lock lock(mutex_);
  if (find(reader) == nullptr) {
    return dropped_reader();
  }
  Status status;
  for (std::size_t i = 0; i < loans.size() && status.ok(); ++i) {
    status = ledger_.give_back(reader, loans[i].segment, loans[i].generation, loans[i].count);
  }
  settle(std::move(lock));
  return status;
}

Status SegmentStore::unmap(ReaderKey reader, std::uint64_t segment) {
  Lock lock(mutex_);
  if (find(reader) == nullptr) {
    return dropped_reader();
  }
  Status status = ledger_.unmap(reader, segment);
  settle(std::move(lock));
  return status;
}

// -- state
// -----------------------------------------------------------------------------------------

SegmentPoolUse SegmentStore::use() const {
  const Lock lock(mutex_);
  return ledger_.use();
}

std::uint64_t SegmentStore::lent_bytes(std::uint32_t reader) const {
  const Lock lock(mutex_);
  const auto found = readers_.find(reader);
  const bool counted = found != readers_.end() && found->second.state != ReaderState::kGone;
  return counted ? ledger_.lent_bytes(found->second.key) : 0;
}

void SegmentStore::set_wake(std::function<void()> wake) {
  const Lock lock(mutex_);
  wake_ = std::move(wake);
}

std::vector<ReaderNotice> SegmentStore::take_notices() {
  const Lock lock(mutex_);
  return std::exchange(notices_, {});
}

}  // namespace tidemill::transport
