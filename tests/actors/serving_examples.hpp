// SPDX-License-Identifier: Apache-2.0
// Examples of the messages of `ServingActor`, with every field set.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "actors/device/messages.hpp"
#include "base/buffer.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::test {

inline engines::RolloutRequest example_request() {
  engines::RolloutRequest request;
  request.id = {0x1122334455667788};
  request.prompt_ids = {102, -103, 104};
  request.sampling = {0.5F, 105, 0.25F, 0.125F, 1.5F, 0.75F, -0.375F, {{106, -2.5F}, {107, 3.5F}}};
  request.seed = 108;
  request.draw_key = 109;
  request.max_new_tokens = 110;
  request.stop_ids = {111, 112};
  request.stop_strings = {"###", "end"};
  request.adapter = "poet";
  request.min_step = 113;
  request.time_limit = std::chrono::milliseconds(2500);
  request.keep_rows = true;
  request.prompt_logprobs = false;
  request.top_logprobs = 14;
  request.prompt_top_logprobs = 15;
  request.prompt_logits = true;
  request.priority = engines::Priority::kHigh;
  request.tenant = "tenant-a";
  request.cache_salt = "salt";
  return request;
}

/// Returns the same request with the other value of each flag.
inline engines::RolloutRequest example_request_of_other_flags() {
  engines::RolloutRequest request;
  request.id = {201};
  request.prompt_logprobs = true;
  request.priority = engines::Priority::kNormal;
  return request;
}

inline engines::RolloutResult example_result() {
  engines::RolloutResult result;
  result.id = {301};
  result.response_ids = {302, -303, 304};
  result.behavior_logprobs = {-0.5F, -0.25F, -1.75F};
  result.versions = {{{305, 306, 307}, 308}, {{309, 310, 311}, 312}};
  result.finish_reason = engines::FinishReason::kCancelled;
  result.error = "past its time limit";
  result.prompt_logprobs = {-3.5F};
  result.prompt_logits = {4.5F, -5.5F};
  result.top_logprobs = {{313, -6.5F}, {314, -7.5F}};
  result.prompt_top_logprobs = {{315, -8.5F}};
  result.cached_tokens = 316;
  return result;
}

/// Returns a tensor whose buffer is in a pool of another process.
inline Tensor named_tensor(DType dtype, std::vector<std::int64_t> shape, BufferIdentity data) {
  data.length = tensor_bytes(dtype, shape).value();
  data.dtype = dtype;
  return {dtype, std::move(shape), Buffer::named(data)};
}

inline engines::Snapshot example_snapshot() {
  engines::Snapshot snapshot;
  snapshot.version = {401, 402, 403};
  snapshot.base_digest = "digest of the base";
  snapshot.adapter_digest = "digest of the adapter";
  snapshot.base["head.weight"] = named_tensor(DType::kBF16, {3, 21}, {404, 405, 406, 407});
  snapshot.base["norm.weight"] = named_tensor(DType::kF32, {11}, {408, 409, 410, 411});
  snapshot.adapter["lora_A"] = named_tensor(DType::kF16, {2, 13}, {412, 413, 414, 415});
  return snapshot;
}

/// Returns a snapshot whose base the receiver has: without its tensors, and with a scalar.
inline engines::Snapshot example_snapshot_without_base() {
  engines::Snapshot snapshot;
  snapshot.version.step = 421;
  snapshot.base_digest = "a base";
  snapshot.adapter_digest = "an adapter";
  snapshot.adapter["scale"] = named_tensor(DType::kF64, {}, {422, 423, 424, 425});
  return snapshot;
}

inline actors::AdapterRequest example_adapter_request() {
  actors::AdapterRequest request;
  request.action = actors::AdapterAction::kUnload;
  request.name = "poet";
  request.path = "/adapters/poet";
  request.version = {501, 502, 503};
  request.config = R"({"r": 8})";
  request.tensors["lora_B"] = named_tensor(DType::kI64, {17, 19}, {504, 505, 506, 507});
  request.created = 1'700'000'000;
  return request;
}

inline actors::AdapterList example_adapter_list() {
  return {{{"poet", {601, 602, 603}, 604, 605, 606}, {"critic", {607, 608, 609}, 610, 611, 612}}};
}

}  // namespace tidemill::test
