// SPDX-License-Identifier: Apache-2.0
// Named float32 tensors in one block of memory: working weights, gradients, optimizer moments.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/ops/matrix.hpp"

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
  /// Creates tensors of zeros, in name order.
  explicit ParameterSet(const TensorShapes& shapes);

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// Return all elements, entry after entry, or those of one entry.
  [[nodiscard]] std::span<float> values() noexcept { return values_; }
  [[nodiscard]] std::span<const float> values() const noexcept { return values_; }
  [[nodiscard]] std::span<float> values(const Entry& entry) noexcept;
  [[nodiscard]] std::span<const float> values(const Entry& entry) const noexcept;

  /// Returns the entry of that name, or null.
  [[nodiscard]] const Entry* find(std::string_view name) const noexcept;
  /// Returns the parameter of that name as a vector. Requires it to exist.
  [[nodiscard]] std::span<float> vector(std::string_view name);
  /// Returns the parameter of that name as a matrix. Requires it to exist and to have two
  /// dimensions.
  [[nodiscard]] Matrix matrix(std::string_view name);

  void set_zero() noexcept;

  /// Reads its values from `tensors`, widening 16-bit floats.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, misshapen or not of a float type.
  [[nodiscard]] Status load(const TensorMap& tensors);

  /// Returns a copy of the values as tensors of `dtype`: kF32, or kF16 or kBF16 rounded to nearest.
  [[nodiscard]] TensorMap to_tensors(DType dtype) const;
  /// Returns kF32 tensors that borrow the values. The set must outlive them.
  [[nodiscard]] TensorMap borrow_tensors() const;

private:
  std::vector<Entry> entries_;
  std::vector<float> values_;
};

}  // namespace tidemill::engines
