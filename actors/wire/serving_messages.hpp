// SPDX-License-Identifier: Apache-2.0
// The encoding of the messages of `ServingActor`; see messages.hpp.
//
// The bytes of tensors do not travel in these messages. A message names each buffer, and the reader
// of the pool resolves it; see actors/remote/buffer_exchange.hpp. The handles of a decoded message
// are therefore unresolved.
#pragma once

#include <cstdint>

#include "actors/device/messages.hpp"
#include "actors/wire/messages.hpp"
#include "base/buffer.hpp"
#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::actors {

/// Has a process open its device. The numbers are those of `engines::RuntimeOptions`, at least 1.
struct StartDevice {
  std::int64_t kv_bytes = 1;
  std::int64_t rollout_rows = 1;
  std::int64_t sampled_rows = 1;
  SegmentAddress segments = {};
};

/// Encodes a message. Requires a request without a constraint, and tensors whose data is as long as
/// their type and shape say. The handles of tensors may be unresolved.
[[nodiscard]] Buffer to_wire(const engines::RolloutRequest& message);
[[nodiscard]] Buffer to_wire(const engines::RolloutResult& message);
[[nodiscard]] Buffer to_wire(const SampleId& message);
[[nodiscard]] Buffer to_wire(const engines::Snapshot& message);
[[nodiscard]] Buffer to_wire(const PolicyVersion& message);
[[nodiscard]] Buffer to_wire(const AdapterRequest& message);
[[nodiscard]] Buffer to_wire(const AdapterList& message);
[[nodiscard]] Buffer to_wire(const StartDevice& message);

/// Decodes a message; see `from_wire` in messages.hpp. In addition to the form of the message,
/// checks that the tensors of a list have different names, and that each of them names a buffer of
/// exactly `tensor_bytes`.
template <>
Result<engines::RolloutRequest> from_wire(const Buffer& body);
template <>
Result<engines::RolloutResult> from_wire(const Buffer& body);
template <>
Result<SampleId> from_wire(const Buffer& body);
template <>
Result<engines::Snapshot> from_wire(const Buffer& body);
template <>
Result<PolicyVersion> from_wire(const Buffer& body);
template <>
Result<AdapterRequest> from_wire(const Buffer& body);
template <>
Result<AdapterList> from_wire(const Buffer& body);
template <>
Result<StartDevice> from_wire(const Buffer& body);

}  // namespace tidemill::actors
