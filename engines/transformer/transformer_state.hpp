// SPDX-License-Identifier: Apache-2.0
// The state of a `Transformer` between calls: the operations, rotation tables and reused buffers.
// Private to this folder.
//
// Legend: as in transformer.hpp, and H heads, F width of the MLP.
#pragma once

#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/batch_plan.hpp"
#include "engines/transformer/device_matrix.hpp"
#include "engines/transformer/pass_memory.hpp"
#include "engines/transformer/rope_cache.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// The buffers of a forward pass over T rows. Between its last layer and the next pass, the head
/// borrows the memory of some of them (`HeadBuffers`).
struct ForwardBuffers {
  explicit ForwardBuffers(DeviceMemory& memory)
      : residual(memory),
        normed(memory),
        query(memory),
        key(memory),
        value(memory),
        attention(memory),
        inner(memory),
        gate(memory),
        up(memory),
        activated(memory),
        rstd(memory),
        lse(memory),
        hidden(memory) {}

  DeviceMatrix residual;   // (T, D)
  DeviceMatrix normed;     // (T, D)
  DeviceMatrix query;      // (T, H*C)
  DeviceMatrix key;        // (T, K*C)
  DeviceMatrix value;      // (T, K*C)
  DeviceMatrix attention;  // (T, H*C)
  DeviceMatrix inner;      // (3 T, F), the memory of the next three
  DeviceMatrix gate;       // (T, F)
  DeviceMatrix up;         // (T, F)
  DeviceMatrix activated;  // (T, F)
  DeviceMatrix rstd;       // (T, 1); for the norms of heads (T, H) and (T, K)
  DeviceMatrix lse;        // (T, H), if the batch has training rows
  DeviceMatrix hidden;     // (T, D), the result

  /// Borrows the memory of a pass over `rows` rows, `window` of them in a layer together. `keeps`
  /// says whether it keeps activations.
  void borrow(const ModelConfig& config, std::int64_t rows, std::int64_t window, bool keeps,
              PassMemory& memory);

  /// Reserves the memory of `gate`, `up` and `activated` for an MLP of width `cols` over `rows`
  /// rows.
  void reserve_inner(std::int64_t rows, std::int64_t cols) {
    const Matrix all = inner.reshape(3 * rows, cols);
    const std::int64_t bytes = rows * inner.bytes_per_row();
    gate.lend(all.data, bytes);
    up.lend(all.slice_rows(rows, rows).data, bytes);
    activated.lend(all.slice_rows(2 * rows, rows).data, bytes);
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
/// narrower type, or must be computed again, are written to the buffer of the same name there, and
/// the gradients of keys and values that belong to a group are gathered in `key` and `value`.
struct BackwardBuffers {
  explicit BackwardBuffers(DeviceMemory& memory)
      : dresidual(memory),
        dnormed(memory),
        dactivated(memory),
        query(memory),
        dquery(memory),
        dkey(memory),
        dvalue(memory),
        dattention(memory),
        prefix_dkey(memory),
        prefix_dvalue(memory) {}

  DeviceMatrix dresidual;      // (N, D)
  DeviceMatrix dnormed;        // (G, D)
  DeviceMatrix dactivated;     // (G, F)
  DeviceMatrix query;          // (G, H*C), the rotated query of models with q/k norms
  DeviceMatrix dquery;         // (G, H*C)
  DeviceMatrix dkey;           // (S, K*C)
  DeviceMatrix dvalue;         // (S, K*C)
  DeviceMatrix dattention;     // (G, H*C)
  DeviceMatrix prefix_dkey;    // (P, K*C), where P <= N counts the rows of shared prefixes
  DeviceMatrix prefix_dvalue;  // (P, K*C)

  /// The letters above.
  struct Rows {
    std::int64_t batch = 0;     // N
    std::int64_t group = 0;     // G
    std::int64_t sequence = 0;  // S
    std::int64_t prefix = 0;    // P
  };
  /// Borrows the memory of a pass over `rows`.
  void borrow(const ModelConfig& config, const Rows& rows, PassMemory& memory);

  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return dresidual.size_bytes() + dnormed.size_bytes() + dactivated.size_bytes() +
           query.size_bytes() + dquery.size_bytes() + dkey.size_bytes() + dvalue.size_bytes() +
           dattention.size_bytes() + prefix_dkey.size_bytes() + prefix_dvalue.size_bytes();
  }
};

/// The buffers of the head: one chunk of rows each, and values for all targets. A buffer for a
/// chunk owns memory only if the buffer of the forward pass that it borrows is too small.
struct HeadBuffers {
  explicit HeadBuffers(DeviceMemory& memory)
      : hidden(memory),
        dhidden(memory),
        logits(memory),
        logprobs(memory),
        entropies(memory),
        dlogprobs(memory),
        dentropies(memory) {}

  DeviceMatrix hidden;            // (chunk, D)
  DeviceMatrix dhidden;           // (chunk, D)
  DeviceMatrix logits;            // (chunk, V)
  DeviceMatrix logprobs;          // (N, 1)
  DeviceMatrix entropies;         // (N, 1)
  DeviceMatrix dlogprobs;         // (N, 1)
  DeviceMatrix dentropies;        // (N, 1)
  bool holds_all_logits = false;  // `logits` has those of all rows of the last `token_logprobs`

  /// Borrows the buffers of `forward` whose content is not needed after a pass, if `chunk` rows fit
  /// in them. Borrows the rest of what `rows` rows need from `memory`.
  void borrow(const ModelConfig& config, const ForwardBuffers& forward, std::int64_t rows,
              std::int64_t chunk, PassMemory& memory);

  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return hidden.size_bytes() + dhidden.size_bytes() + logits.size_bytes() +
           logprobs.size_bytes() + entropies.size_bytes() + dlogprobs.size_bytes() +
           dentropies.size_bytes();
  }
};

/// The lists that a plan's operations read, in a prepared pass.
struct PlanLists {
  IndexList ids;        // (T), empty for plans that do not look up embeddings
  IndexList positions;  // (T)
  SegmentList segments;
  SegmentList appends;
  AdapterLists adapters;
};

/// The positions of these lists in the contents of a pass.
struct PlanRanges {
  PassRange ids;
  PassRange positions;
  PassRange segments;
  PassRange appends;
  AdapterRanges adapters;
};

/// Adds the lists of `plan`, and the ids of its rows. The activations of its last `num_kept` rows
/// are kept.
[[nodiscard]] PlanRanges add_plan(const BatchPlan& plan, std::span<const std::int32_t> ids,
                                  std::int64_t num_kept, PassContents& contents);
/// Returns the lists that were added at `ranges`.
[[nodiscard]] PlanLists lists_at(const PlanRanges& ranges, const PreparedPass& pass);

/// The buffers of all passes and the memory that they share.
struct PassBuffers {
  PassBuffers(ModelConfig config_in, DeviceMemory& device)
      : config(std::move(config_in)),
        memory(device),
        forward(device),
        backward(device),
        head(device) {}

  /// Divide the memory of the pass: of its layers over `rows` rows, `window` of them together, then
  /// of its head, then of its backward pass. Each call ends what the later ones lent before.
  void begin_forward(std::int64_t rows, std::int64_t window, bool keeps);
  void begin_head(std::int64_t rows, std::int64_t chunk_rows);
  void begin_backward(const BackwardBuffers::Rows& rows);
  /// Returns the memory that passes within `limits` need. No pass may be in progress.
  [[nodiscard]] std::int64_t bytes_for(const PassLimits& limits);

  ModelConfig config;
  PassMemory memory;
  std::int64_t forward_end = 0;  // positions in `memory`
  std::int64_t head_end = 0;
  ForwardBuffers forward;
  BackwardBuffers backward;
  HeadBuffers head;

private:
  [[nodiscard]] std::int64_t pass_bytes(const PassLimits& pass);
};

/// Everything that a `Transformer` keeps from one call to the next.
struct Transformer::State : PassBuffers {
  State(ModelConfig config_in, Ops& ops_in)
      : PassBuffers(std::move(config_in), ops_in.memory()), ops(ops_in), rope(config, ops) {}

  /// Uploads `contents` in place of the pass in `slot`.
  const PreparedPass& prepare(PassContents contents, std::unique_ptr<PreparedPass>& slot);

  Ops& ops;
  RopeCache rope;
  // The lists of the last call of each kind.
  std::unique_ptr<PreparedPass> forward_pass;
  std::unique_ptr<PreparedPass> logits_pass;
  std::unique_ptr<PreparedPass> head_pass;
  std::unique_ptr<PreparedPass> backward_pass;
};

}  // namespace tidemill::engines
