// SPDX-License-Identifier: Apache-2.0
// Reads NF4 weights as bitsandbytes saves them, each as six tensors.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::engines {

/// Replaces the parts of each NF4 weight by one tensor of type kNf4 with the same bits.
///
/// The parts of weight W are W itself (U8, codes), `W.absmax` (U8), `W.quant_map`,
/// `W.nested_absmax` and `W.nested_quant_map` (F32), and `W.quant_state.bitsandbytes__nf4` (U8, a
/// JSON object). Only blocks of 64, groups of 256 and the published maps are supported; see
/// base/tensor/block_nf4.hpp. Other tensors are kept.
/// Source: bitsandbytes-foundation/bitsandbytes, `QuantState.as_dict(packed=True)`.
/// Errors: `kCorruptData` for a part that is missing or has the wrong type or size, and for an
/// invalid shape, scale or offset; the message names `location`, the weight and the part.
/// `kUnimplemented` for fp4, unquantized scales, and other block sizes or maps.
[[nodiscard]] Result<TensorMap> join_nf4_tensors(TensorMap tensors, const std::string& location);

}  // namespace tidemill::engines
