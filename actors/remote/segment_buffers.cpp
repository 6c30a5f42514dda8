// SPDX-License-Identifier: Apache-2.0
#include "actors/remote/segment_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace tidemill::actors {
namespace {

// Bytes of a type with blocks are read as these numbers.
constexpr std::size_t kBlockAlignment = alignof(float);

// With fewer entries, the table of copies is not searched for copies that have ended.
constexpr std::size_t kMinCopies = 64;

class SegmentLender final : public BufferLender {
public:
  SegmentLender(std::shared_ptr<SegmentCopies> copies, std::uint32_t reader)
      : copies_(std::move(copies)), reader_(reader) {}

  Result<TensorMap> lend(const TensorMap& tensors) override {
    TensorMap lent;
    for (const auto& [name, tensor] : tensors) {
      if (Status status = add(name, tensor, lent); !status.ok()) {
        take_back(lent);
        return status.with_context("tensor " + name);
      }
    }
    return lent;
  }

  void take_back(const TensorMap& lent) override {
    for (const auto& [name, tensor] : lent) {
      if (tensor.data.size_bytes() != 0) {
        copies_->pool().take_back(tensor.data, reader_);
      }
    }
  }

private:
  Status add(const std::string& name, const Tensor& tensor, TensorMap& lent) {
    Tensor copy{tensor.dtype, tensor.shape, Buffer()};
    if (tensor.data.size_bytes() != 0) {  // otherwise there is nothing to lend
      TIDEMILL_ASSIGN_OR_RETURN(copy.data, copies_->copy_of(tensor.data));
      TIDEMILL_RETURN_IF_ERROR(copies_->pool().lend(copy.data, reader_));
    }
    lent.emplace(name, std::move(copy));
    return {};
  }

  std::shared_ptr<SegmentCopies> copies_;
  std::uint32_t reader_;
};

class SegmentResolver final : public BufferResolver {
public:
  explicit SegmentResolver(std::shared_ptr<transport::SegmentReader> reader)
      : reader_(std::move(reader)) {}

  Status resolve(TensorMap& tensors) override {
    Status first;
    for (auto& entry : tensors) {
      if (entry.second.data.size_bytes() == 0) {
        continue;
      }
      Result<Buffer> bytes = reader_->resolve(entry.second.data.identity());
      Status status = bytes.status();
      if (status.ok()) {
        entry.second.data = std::move(bytes).value();
        status = check_alignment(entry);
      }
      if (first.ok() && !status.ok()) {
        first = status.with_context("tensor " + entry.first);
      }
    }
    return first;
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

Status check_alignment(const TensorMap::value_type& tensor) {
  const DType dtype = tensor.second.dtype;
  const std::size_t alignment =
      dtype_block_elements(dtype) == 1 ? dtype_bytes(dtype) : kBlockAlignment;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.second.data.bytes().data());
  if (address % alignment != 0) {
    return corrupt_data("the bytes are not aligned for " + std::string(dtype_name(dtype)));
  }
  return {};
}

std::shared_ptr<BufferLender> make_segment_lender(std::shared_ptr<SegmentCopies> copies,
                                                  std::uint32_t reader) {
  return std::make_shared<SegmentLender>(std::move(copies), reader);
}

std::shared_ptr<BufferResolver> make_segment_resolver(
    std::shared_ptr<transport::SegmentReader> reader) {
  return std::make_shared<SegmentResolver>(std::move(reader));
}

}  // namespace tidemill::actors
