// SPDX-License-Identifier: Apache-2.0
// Named float32 tensors in one block of device memory: working weights, gradients, optimizer
// moments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer_allocator.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// The largest number of parameters that one unit of a training job updates, lays out or copies.
inline constexpr std::int64_t kUnitElements = std::int64_t{1} << 20U;

/// Returns how many units `elements` parameters take.
[[nodiscard]] constexpr std::int64_t num_unit_parts(std::int64_t elements) noexcept {
  return (elements + kUnitElements - 1) / kUnitElements;
}

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
  class Copy;

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
  /// Sets elements [first, first + count) to zero.
  void set_zero(std::int64_t first, std::int64_t count);

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
  /// Starts the same, part by part. The set must outlive the copy. Errors: those of the allocator.
  [[nodiscard]] Result<Copy> start_copy(const Entry& entry, DType dtype,
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

/// A copy of one tensor that is being made, part by part.
class ParameterSet::Copy {
public:
  [[nodiscard]] bool done() const noexcept { return next_ == from_.size; }
  /// Copies the next part, of at most `kUnitElements`, and returns its bytes in the new tensor.
  /// Requires that `done` is false.
  std::span<const std::byte> run();
  /// Returns the number of bytes of the whole tensor.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return made_.bytes.size(); }
  /// Returns whether all elements copied until now are finite.
  [[nodiscard]] bool all_finite() const noexcept { return all_finite_; }
  /// Returns the tensor. Requires `done`.
  [[nodiscard]] Tensor take();

private:
  friend class ParameterSet;
  Copy(ConstVector from, std::vector<std::int64_t> shape, DType dtype, Ops& ops,
       UnwrittenBuffer made)
      : ops_(&ops), from_(from), shape_(std::move(shape)), dtype_(dtype), made_(std::move(made)) {}

  Ops* ops_;
  ConstVector from_;
  std::vector<std::int64_t> shape_;
  DType dtype_;
  UnwrittenBuffer made_;
  std::int64_t next_ = 0;  // element to copy
  bool all_finite_ = true;
};

}  // namespace tidemill::engines
