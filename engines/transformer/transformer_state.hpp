// SPDX-License-Identifier: Apache-2.0
// The state of a `Transformer` between calls: the operations, rotation tables and reused buffers.
// Private to this folder.
//
// Legend: as in transformer.hpp, and H heads, F width of the MLP.
#pragma once

#include "engines/transformer/batch_plan.hpp"
#include "engines/transformer/owned_matrix.hpp"
#include "engines/transformer/rope_cache.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// The buffers of a forward pass over T rows. Between its last layer and the next pass, the head
/// borrows the memory of some of them (`HeadBuffers`).
struct ForwardBuffers {
  OwnedMatrix residual;   // (T, D)
  OwnedMatrix normed;     // (T, D)
  OwnedMatrix query;      // (T, H*C)
  OwnedMatrix key;        // (T, K*C)
  OwnedMatrix value;      // (T, K*C)
  OwnedMatrix attention;  // (T, H*C)
  OwnedMatrix inner;      // (3 T, F), the memory of the next three
  OwnedMatrix gate;       // (T, F)
  OwnedMatrix up;         // (T, F)
  OwnedMatrix activated;  // (T, F)
  OwnedMatrix rstd;       // (T, 1); for the norms of heads (T, H) and (T, K)
  OwnedMatrix lse;        // (T, H), if the batch has training rows
  OwnedMatrix hidden;     // (T, D), the result

  /// Reserves the memory of `gate`, `up` and `activated` for an MLP of width `cols` over `rows`
  /// rows.
  void reserve_inner(std::int64_t rows, std::int64_t cols) {
    const Matrix all = inner.reshape(3 * rows, cols);
    const auto count = static_cast<std::size_t>(rows * cols);
    gate.lend({all.row(0), count});
    up.lend({all.row(rows), count});
    activated.lend({all.row(2 * rows), count});
  }

  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return residual.size_bytes() + normed.size_bytes() + query.size_bytes() + key.size_bytes() +
           value.size_bytes() + attention.size_bytes() + inner.size_bytes() + gate.size_bytes() +
           up.size_bytes() + activated.size_bytes() + rstd.size_bytes() + lse.size_bytes() +
           hidden.size_bytes();
  }
};

/// The buffers of a backward pass over N rows. G is the largest number of rows that go through a
/// layer together. S is the length of the longest sequence that is split into windows, but at least
/// G. The backward pass also uses the buffers of the forward pass: activations that were kept in a
/// narrower type, or must be computed again, are written to the buffer of the same name there.
struct BackwardBuffers {
  OwnedMatrix dresidual;      // (N, D)
  OwnedMatrix dnormed;        // (G, D)
  OwnedMatrix dactivated;     // (G, F)
  OwnedMatrix query;          // (G, H*C), the rotated query of models with q/k norms
  OwnedMatrix dquery;         // (G, H*C)
  OwnedMatrix dkey;           // (S, K*C)
  OwnedMatrix dvalue;         // (S, K*C)
  OwnedMatrix dattention;     // (G, H*C)
  OwnedMatrix prefix_dkey;    // (P, K*C), where P <= N counts the rows of shared prefixes
  OwnedMatrix prefix_dvalue;  // (P, K*C)

  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return dresidual.size_bytes() + dnormed.size_bytes() + dactivated.size_bytes() +
           query.size_bytes() + dquery.size_bytes() + dkey.size_bytes() + dvalue.size_bytes() +
           dattention.size_bytes() + prefix_dkey.size_bytes() + prefix_dvalue.size_bytes();
  }
};

/// The buffers of the head, one chunk of rows each. A buffer owns memory only if the buffer of the
/// forward pass that it borrows is too small.
struct HeadBuffers {
  OwnedMatrix hidden;             // (chunk, D)
  OwnedMatrix dhidden;            // (chunk, D)
  OwnedMatrix logits;             // (chunk, V)
  bool holds_all_logits = false;  // `logits` has those of all rows of the last `token_logprobs`

  /// Borrows the buffers of `forward` whose content is not needed after a pass.
  void borrow(ForwardBuffers& forward) {
    hidden.lend(forward.normed.memory());
    dhidden.lend(forward.residual.memory());
    logits.lend(forward.inner.memory());
  }

  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return hidden.size_bytes() + dhidden.size_bytes() + logits.size_bytes();
  }
};

/// Everything that a `Transformer` keeps from one call to the next.
struct Transformer::State {
  State(ModelConfig config_in, Ops& ops_in)
      : config(std::move(config_in)), ops(ops_in), rope(config) {}

  ModelConfig config;
  Ops& ops;
  RopeCache rope;
  ForwardBuffers forward;
  BackwardBuffers backward;
  HeadBuffers head;
};

}  // namespace tidemill::engines
