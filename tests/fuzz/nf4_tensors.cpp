// SPDX-License-Identifier: Apache-2.0
// Fuzzes tensor files with NF4 weights as bitsandbytes saves them.
#include "engines/formats/nf4_tensors.hpp"

#include <vector>

#include "base/digest.hpp"
#include "base/files/tensor_file.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

void try_tensor(const Tensor& tensor) {
  require(tensor.data.size_bytes() == tensor_bytes(tensor.dtype, tensor.shape),
          "the size of a tensor matches its shape");
  require_ok(check_finite(tensor), "scales are finite");
  const Tensor wide = to_float_type(tensor, DType::kF32);
  require_ok(check_finite(wide), "a finite tensor is finite after widening");
  const Nf4Parts parts = nf4_parts(tensor);
  const auto values = wide.data.as<float>();
  for (std::size_t i = 0; i < values.size(); i += 31) {
    require(nf4_element(parts, static_cast<std::int64_t>(i)) == values[i],
            "an element does not depend on how it is read");
  }
  const auto again = make_nf4_tensor(parts, tensor.shape, "again");
  require_ok(again.status(), "the parts of a tensor can be joined");
  require(digest_tensors({{"w", again.value()}}) == digest_tensors({{"w", tensor}}),
          "a tensor survives splitting and joining");
  const auto quantized = quantize_nf4(wide, "wide");
  if (!quantized.ok()) {
    require_refusal(quantized.status(), "tensor wide: ");
    return;
  }
  require_ok(check_finite(quantized.value()), "a quantized tensor is finite");
}

}  // namespace

void nf4_tensors(std::string_view input) {
  static MemoryFile file;
  file.fill(input);
  const auto copied = read_tensor_file(file.path(), TensorPlacement::kCopied);
  if (!copied.ok()) {
    return;  // the target `safetensors` checks this refusal
  }
  const auto mapped = read_tensor_file(file.path(), TensorPlacement::kMapped);
  require_ok(mapped.status(), "a file that can be copied can be mapped");
  const auto joined = engines::join_nf4_tensors(copied.value().tensors, "file");
  const auto other = engines::join_nf4_tensors(mapped.value().tensors, "file");
  require(joined.ok() == other.ok(), "a refusal does not depend on placement");
  if (!joined.ok()) {
    require_refusal(joined.status(), "file: ");
    return;
  }
  require(digest_tensors(joined.value()) == digest_tensors(other.value()),
          "tensors do not depend on placement");
  for (const auto& [name, tensor] : joined.value()) {
    if (tensor.dtype == DType::kNf4) {
      try_tensor(tensor);
    }
  }
}

}  // namespace tidemill::fuzz
