// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/parameter_set.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "base/tensor/float_tensor.hpp"

namespace tidemill::engines {
namespace {

// Elements that are converted at a time between the host's types and float32.
constexpr std::int64_t kConvertedElements = std::int64_t{1} << 18U;
// Elements of a row that is set to zero: small enough that many threads share a unit.
constexpr std::int64_t kZeroedElements = std::int64_t{1} << 14U;

// Device memory fails only with the device, after which nothing can go on.
void check_read(const Status& status) {
  TIDEMILL_CHECK(status.ok()) << status.to_string();
}

// Returns elements [first, first + count) of a tensor whose elements are stored one by one.
Tensor part_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  const std::size_t width = dtype_bytes(tensor.dtype);
  return {tensor.dtype,
          {count},
          tensor.data.slice(static_cast<std::size_t>(first) * width,
                            static_cast<std::size_t>(count) * width, tensor.dtype)};
}

void write_tensor(const Tensor& tensor, Vector to, Ops& ops) {
  if (!is_float_type(tensor.dtype)) {  // blocks
    ops.write(float_values(tensor), to);
    return;
  }
  std::vector<float> values;
  for (std::int64_t first = 0; first < to.size; first += kConvertedElements) {
    const std::int64_t count = std::min(kConvertedElements, to.size - first);
    if (tensor.dtype == DType::kF32) {
      ops.write(tensor.data.as<float>().subspan(static_cast<std::size_t>(first),
                                                static_cast<std::size_t>(count)),
                to.slice(first, count));
      continue;
    }
    values.resize(static_cast<std::size_t>(count));
    widen_floats(part_of(tensor, first, count), values);
    ops.write(values, to.slice(first, count));
  }
}

}  // namespace

Result<ParameterSet> ParameterSet::create(const TensorShapes& shapes, Ops& ops) {
  ParameterSet set;
  set.ops_ = &ops;
  for (const auto& [name, shape] : shapes) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) {
      size *= extent;
    }
    set.entries_.push_back({name, shape, set.size_, size});
    set.size_ += size;
  }
  TIDEMILL_ASSIGN_OR_RETURN(set.block_,
                            ops.memory().allocate(set.size_ * std::int64_t{sizeof(float)}));
  set.set_zero();
  return set;
}

const ParameterSet::Entry* ParameterSet::find(std::string_view name) const noexcept {
  const auto found = std::ranges::lower_bound(
      entries_, name, {}, [](const Entry& entry) { return std::string_view{entry.name}; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

const ParameterSet::Entry& ParameterSet::entry_of(std::string_view name) const {
  const Entry* entry = find(name);
  TIDEMILL_CHECK(entry != nullptr) << name;
  return *entry;
}

Vector ParameterSet::vector(std::string_view name) {
  return values(entry_of(name));
}

ConstVector ParameterSet::vector(std::string_view name) const {
  return values(entry_of(name));
}

Matrix ParameterSet::matrix(std::string_view name) {
  const Entry& entry = entry_of(name);
  TIDEMILL_CHECK(entry.shape.size() == 2) << name;
  const std::int64_t cols = entry.shape[1];
  return {values(entry).data, entry.shape[0], cols, cols};
}

ConstMatrix ParameterSet::matrix(std::string_view name) const {
  const Entry& entry = entry_of(name);
  TIDEMILL_CHECK(entry.shape.size() == 2) << name;
  const std::int64_t cols = entry.shape[1];
  return {values(entry).data, entry.shape[0], cols, cols};
}

void ParameterSet::set_zero() {
  set_zero(0, size_);
}

// Fills whole rows, so that the work can be divided.
void ParameterSet::set_zero(std::int64_t first, std::int64_t count) {
  const Vector all = values().slice(first, count);
  const std::int64_t rows = count / kZeroedElements;
  if (rows > 0) {
    ops_->fill(0.0F, {all.data, rows, kZeroedElements, kZeroedElements});
  }
  if (const std::int64_t rest = count - rows * kZeroedElements; rest > 0) {
    ops_->fill(0.0F, {all.slice(count - rest, rest).data, 1, rest, rest});
  }
}

Status ParameterSet::load(const TensorMap& tensors) {
  for (const Entry& entry : entries_) {
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(tensors, entry.name, entry.shape));
    write_tensor(tensors.at(entry.name), values(entry), *ops_);
  }
  return {};
}

Result<TensorMap> ParameterSet::to_tensors(DType dtype, BufferAllocator& allocator) const {
  TensorMap tensors;
  for (const Entry& entry : entries_) {
    TIDEMILL_ASSIGN_OR_RETURN(tensors[entry.name], to_tensor(entry, dtype, allocator));
  }
  return tensors;
}

Result<Tensor> ParameterSet::to_tensor(const Entry& entry, DType dtype,
                                       BufferAllocator& allocator) const {
  TIDEMILL_ASSIGN_OR_RETURN(Copy copy, start_copy(entry, dtype, allocator));
  while (!copy.done()) {
    copy.run();
  }
  return copy.take();
}

Result<ParameterSet::Copy> ParameterSet::start_copy(const Entry& entry, DType dtype,
                                                    BufferAllocator& allocator) const {
  TIDEMILL_ASSIGN_OR_RETURN(UnwrittenBuffer made,
                            allocator.allocate_unwritten(
                                static_cast<std::size_t>(entry.size) * dtype_bytes(dtype), dtype));
  return Copy(values(entry), entry.shape, dtype, *ops_, std::move(made));
}

namespace {

// Adds up bits instead of returning early, so that the compiler can use vectors.
bool are_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t not_finite = 0;
  for (const float value : values) {
    not_finite |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
  }
  return not_finite == 0;
}

}  // namespace

// Reads in pieces, each straight into the new buffer unless it has to be rounded.
std::span<const std::byte> ParameterSet::Copy::run() {
  TIDEMILL_CHECK(!done());
  const std::size_t width = dtype_bytes(dtype_);
  const std::int64_t begin = next_;
  const std::int64_t end = std::min(begin + kUnitElements, from_.size);
  std::vector<float> values;
  while (next_ < end) {
    const ConstVector part = from_.slice(next_, std::min(kConvertedElements, end - next_));
    const auto count = static_cast<std::size_t>(part.size);
    const auto to = made_.bytes.subspan(static_cast<std::size_t>(next_) * width, count * width);
    next_ += part.size;
    if (dtype_ == DType::kF32) {
      const std::span<float> floats(reinterpret_cast<float*>(to.data()), count);
      check_read(ops_->read(part, floats));
      all_finite_ = all_finite_ && are_finite(floats);
      continue;
    }
    values.resize(count);
    check_read(ops_->read(part, values));
    all_finite_ = all_finite_ && are_finite(values);
    round_floats(values, dtype_, to);
  }
  return made_.bytes.subspan(static_cast<std::size_t>(begin) * width,
                             static_cast<std::size_t>(end - begin) * width);
}

Tensor ParameterSet::Copy::take() {
  TIDEMILL_CHECK(done());
  return {dtype_, std::move(shape_), std::move(made_.buffer)};
}

TensorMap ParameterSet::to_tensors(DType dtype) const {
  HeapAllocator heap;  // never fails
  return to_tensors(dtype, heap).value();
}

std::vector<float> ParameterSet::to_floats() const {
  std::vector<float> floats(static_cast<std::size_t>(size_));
  check_read(ops_->read(values(), floats));
  return floats;
}

}  // namespace tidemill::engines
