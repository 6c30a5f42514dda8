// SPDX-License-Identifier: Apache-2.0
// Weights in NF4 as bitsandbytes saves them: one weight is six tensors of a file.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/tensor.hpp"

namespace tidemill::engines {

/// Replaces the parts of each weight in NF4 by one tensor of type kNf4, which has its bits.
///
/// Parts of weight W: W itself (U8, codes), `W.absmax` (U8), `W.quant_map`, `W.nested_absmax` and
/// `W.nested_quant_map` (F32), and `W.quant_state.bitsandbytes__nf4` (U8, a JSON object). Blocks of
/// 64, groups of 256 and the published maps are read; see base/block_nf4.hpp. Other tensors stay.
/// Source: bitsandbytes-foundation/bitsandbytes, `QuantState.as_dict(packed=True)`.
/// Errors: `kCorruptData` naming `place`, the weight and the part: one that is missing, of another
/// type or count, a shape or a float that cannot be; `kUnimplemented`: fp4, scales that were not
/// quantised, other blocks or maps.
[[nodiscard]] Result<TensorMap> join_nf4_tensors(TensorMap tensors, const std::string& place);

}  // namespace tidemill::engines
