// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_pool.hpp"

#include <utility>

#include "base/check.hpp"
#include "transport/segments/segment_store.hpp"

namespace tidemill::transport {

SegmentPool::SegmentPool(const SegmentPoolOptions& options)
    : store_(std::make_shared<SegmentStore>(options)) {
  TIDEMILL_CHECK(options.pool != 0) << "pool 0 is a process's own memory";
  TIDEMILL_CHECK(options.shared_segment_bytes > 0 && options.shared_segment_bytes % 4096 == 0)
      << options.shared_segment_bytes;
}

SegmentPool::~SegmentPool() {
  store_->stop_callbacks();
}

Result<UnwrittenBuffer> SegmentPool::allocate_unwritten(std::size_t size, DType dtype) {
  return store_->allocate_unwritten(size, dtype);
}

std::uint64_t SegmentPool::max_bytes() const noexcept {
  return store_->max_bytes();
}

Status SegmentPool::add_reader(const SegmentReaderGrant& grant) {
  return store_->add_reader(grant);
}

void SegmentPool::drop_reader(std::uint32_t reader) {
  store_->drop_reader(reader);
}

Status SegmentPool::lend(const Buffer& buffer, std::uint32_t reader) {
  return store_->lend(buffer, reader);
}

void SegmentPool::take_back(const Buffer& buffer, std::uint32_t reader) {
  store_->take_back(buffer, reader);
}

void SegmentPool::when_room(std::uint64_t size, Callback callback) {
  store_->when_room(size, std::move(callback));
}

void SegmentPool::when_lendable(const Buffer& buffer, std::uint32_t reader, Callback callback) {
  store_->when_lendable(buffer, reader, std::move(callback));
}

std::uint64_t SegmentPool::number() const noexcept {
  return store_->pool();
}

SegmentPoolUse SegmentPool::use() const {
  return store_->use();
}

std::uint64_t SegmentPool::lent_bytes(std::uint32_t reader) const {
  return store_->lent_bytes(reader);
}

}  // namespace tidemill::transport
