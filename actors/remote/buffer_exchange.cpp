// SPDX-License-Identifier: Apache-2.0
#include "actors/remote/buffer_exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tidemill::actors {
namespace {

// Bytes of a type with blocks are read as these numbers.
constexpr std::size_t kBlockAlignment = alignof(float);

// Returns an error if the bytes of a resolved tensor are not aligned for its type.
Status check_alignment(const Tensor& tensor) {
  const DType dtype = tensor.dtype;
  const std::size_t alignment =
      dtype_block_elements(dtype) == 1 ? dtype_bytes(dtype) : kBlockAlignment;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data.bytes().data());
  if (address % alignment != 0) {
    return corrupt_data("the bytes are not aligned for " + std::string(dtype_name(dtype)));
  }
  return {};
}

}  // namespace

Result<TensorMap> lend(BufferLender& lender, const TensorMap& tensors) {
  TensorMap lent;
  for (const auto& [name, tensor] : tensors) {
    Tensor copy{tensor.dtype, tensor.shape, Buffer()};
    if (tensor.data.size_bytes() != 0) {  // otherwise there is nothing to lend
      auto buffer = lender.lend(tensor.data);
      if (!buffer.ok()) {
        take_back(lender, lent);
        return buffer.status().with_context("tensor " + name);
      }
      copy.data = std::move(buffer).value();
    }
    lent.emplace(name, std::move(copy));
  }
  return lent;
}

void take_back(BufferLender& lender, const TensorMap& lent) {
  for (const auto& [name, tensor] : lent) {
    if (tensor.data.size_bytes() != 0) {
      lender.take_back(tensor.data);
    }
  }
}

Status resolve(BufferResolver& resolver, TensorMap& tensors) {
  Status first;
  for (auto& entry : tensors) {
    if (entry.second.data.size_bytes() == 0) {
      continue;
    }
    Result<Buffer> bytes = resolver.resolve(entry.second.data.identity());
    Status status = bytes.status();
    if (status.ok()) {
      entry.second.data = std::move(bytes).value();
      status = check_alignment(entry.second);
    }
    if (first.ok() && !status.ok()) {
      first = status.with_context("tensor " + entry.first);
    }
  }
  return first;
}

}  // namespace tidemill::actors
