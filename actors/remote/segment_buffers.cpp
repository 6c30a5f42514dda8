// SPDX-License-Identifier: Apache-2.0
#include "actors/remote/segment_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace tidemill::actors {
namespace {

// With fewer entries, the table of copies is not searched for copies that have ended.
constexpr std::size_t kMinCopies = 64;

// Returns why bytes could not be lent or resolved, in words for users. They know the tensor and its
// process, which callers name, but not the identities of buffers and the numbers of readers with
// which messages of the transport begin.
Status in_words(const BufferIdentity& identity, const Status& failure) {
  if (failure.ok()) {
    return failure;
  }
  std::string fact = failure.message();
  if (const std::string name = to_string(identity); fact.starts_with(name)) {
    fact.erase(0, fact.find(": ", name.size()) + 2);
  }
  return {failure.code(), std::to_string(identity.length) + " bytes of shared memory: " + fact};
}

Status lend_failure(const BufferIdentity& identity, const Status& failure) {
  const bool gone = failure.code() == Errc::kNotFound || failure.code() == Errc::kUnavailable;
  return in_words(identity, gone ? Status(failure.code(), "the process has ended") : failure);
}

Status resolve_failure(const BufferIdentity& identity, const Status& failure) {
  const bool unknown = failure.code() == Errc::kNotFound;
  return in_words(identity, unknown ? Status(failure.code(), "not lent to this process") : failure);
}

class SegmentLender final : public BufferLender {
public:
  SegmentLender(std::shared_ptr<SegmentCopies> copies, std::uint32_t reader)
      : copies_(std::move(copies)), reader_(reader) {}

  Result<Buffer> lend(const Buffer& buffer) override {
    TIDEMILL_ASSIGN_OR_RETURN(Buffer shared, copies_->copy_of(buffer));
    TIDEMILL_RETURN_IF_ERROR(
        lend_failure(shared.identity(), copies_->pool().lend(shared, reader_)));
    return shared;
  }
  void take_back(const Buffer& lent) override { copies_->pool().take_back(lent, reader_); }

private:
  std::shared_ptr<SegmentCopies> copies_;
  std::uint32_t reader_;
};

class SegmentResolver final : public BufferResolver {
public:
  explicit SegmentResolver(std::shared_ptr<transport::SegmentReader> reader)
      : reader_(std::move(reader)) {}

  Result<Buffer> resolve(const BufferIdentity& identity) override {
    auto bytes = reader_->resolve(identity);
    return bytes.ok() ? std::move(bytes) : resolve_failure(identity, bytes.status());
  }

private:
  std::shared_ptr<transport::SegmentReader> reader_;
};

}  // namespace

Result<Buffer> SegmentCopies::copy_of(const Buffer& buffer) {
  const BufferIdentity& of = buffer.identity();
  if (of.pool == pool_.number()) {
    return buffer;
  }
  const Key key{of.pool, of.segment, of.generation, of.offset, of.length};
  const std::lock_guard lock(mutex_);
  const auto found = copies_.find(key);
  std::shared_ptr<const Buffer> copy = found == copies_.end() ? nullptr : found->second.lock();
  if (copy == nullptr) {
    if (copies_.size() >= purge_at_) {
      std::erase_if(copies_, [](const auto& entry) { return entry.second.expired(); });
      purge_at_ = 2 * copies_.size() + kMinCopies;
    }
    TIDEMILL_ASSIGN_OR_RETURN(UnwrittenBuffer made, pool_.allocate_unwritten(of.length, of.dtype));
    TIDEMILL_RETURN_IF_ERROR(buffer.copy_to(0, made.bytes));
    copy = std::make_shared<const Buffer>(std::move(made.buffer));
    copies_[key] = copy;
    ++num_copied_;
  }
  return Buffer::of_pool(copy, copy->bytes(), copy->identity());
}

std::uint64_t SegmentCopies::num_copied() const {
  const std::lock_guard lock(mutex_);
  return num_copied_;
}

std::shared_ptr<BufferLender> make_segment_lender(std::shared_ptr<SegmentCopies> copies,
                                                  std::uint32_t reader) {
  return std::make_shared<SegmentLender>(std::move(copies), reader);
}

transport::SegmentReaderOptions reader_options(const SegmentAddress& address) {
  transport::SegmentReaderOptions options;
  options.path = address.socket;
  options.reader = address.reader;
  options.token = address.token;
  return options;
}

std::shared_ptr<BufferResolver> make_segment_resolver(
    std::shared_ptr<transport::SegmentReader> reader) {
  return std::make_shared<SegmentResolver>(std::move(reader));
}

}  // namespace tidemill::actors
