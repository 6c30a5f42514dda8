// SPDX-License-Identifier: Apache-2.0
// Named float32 tensors in one block of device memory: working weights, gradients, optimizer
// moments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer_allocator.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Holds float32 tensors by name. Two sets created from the same shapes have the same layout, so an
/// optimizer may go through weights and gradients in parallel.
class ParameterSet {
public:
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  // of its first element in `values`
    std::int64_t size = 0;    // elements
  };

  ParameterSet() = default;
  /// Creates tensors of zeros, in name order. `ops` must outlive the set.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] static Result<ParameterSet> create(const TensorShapes& shapes, Ops& ops);

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// Return all elements, entry after entry, or those of one entry.
  [[nodiscard]] Vector values() noexcept { return {block_.address(), size_}; }
  [[nodiscard]] ConstVector values() const noexcept { return {block_.address(), size_}; }
  [[nodiscard]] Vector values(const Entry& entry) noexcept {
    return values().slice(entry.offset, entry.size);
  }
  [[nodiscard]] ConstVector values(const Entry& entry) const noexcept {
    return values().slice(entry.offset, entry.size);
  }

  /// Returns the entry of that name, or null.
  [[nodiscard]] const Entry* find(std::string_view name) const noexcept;
  /// Returns the parameter of that name as a vector. Requires it to exist.
  [[nodiscard]] Vector vector(std::string_view name);
  [[nodiscard]] ConstVector vector(std::string_view name) const;
  /// Returns the parameter of that name as a matrix. Requires it to exist and to have two
  /// dimensions.
  [[nodiscard]] Matrix matrix(std::string_view name);
  [[nodiscard]] ConstMatrix matrix(std::string_view name) const;

  void set_zero();

  /// Reads its values from `tensors`, widening 16-bit floats.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, misshapen or not of a float type.
  [[nodiscard]] Status load(const TensorMap& tensors);

  /// Returns a copy of the values as tensors of `dtype`: kF32, or kF16 or kBF16 rounded to nearest.
  [[nodiscard]] TensorMap to_tensors(DType dtype) const;
  /// Returns the same in memory of `allocator`. Errors: those of the allocator.
  [[nodiscard]] Result<TensorMap> to_tensors(DType dtype, BufferAllocator& allocator) const;
  /// Returns a copy of one tensor in memory of `allocator`. Errors: those of the allocator.
  [[nodiscard]] Result<Tensor> to_tensor(const Entry& entry, DType dtype,
                                         BufferAllocator& allocator) const;
  /// Returns a copy of all elements, entry after entry.
  [[nodiscard]] std::vector<float> to_floats() const;

private:
  [[nodiscard]] const Entry& entry_of(std::string_view name) const;

  Ops* ops_ = nullptr;
  std::vector<Entry> entries_;
  DeviceBlock block_;
  std::int64_t size_ = 0;
};

}  // namespace tidemill::engines
