// SPDX-License-Identifier: Apache-2.0
#include "actors/wire/serving_messages.hpp"

#include <cstring>
#include <limits>
#include <optional>

#include "actors/wire/codec.hpp"
#include "actors/wire/serving.capnp.h"
#include "base/check.hpp"

// Found by their first argument. Not in an unnamed namespace, in which they would not be found.
namespace tidemill::actors::wire {

// -- lists of numbers and texts -------------------------------------------------------------------

template <class Values, class Init>
void write_numbers(const Values& values, Init init) {
  auto list = init(static_cast<unsigned>(values.size()));
  unsigned index = 0;
  for (const auto& value : values) {
    list.set(index++, value);
  }
}
template <class List, class Value>
void read_numbers(List list, std::vector<Value>& out) {
  out.reserve(list.size());
  for (const auto value : list) {
    out.push_back(value);
  }
}

static void write_texts(const std::vector<std::string>& texts,
                        capnp::List<capnp::Text>::Builder list) {
  for (unsigned i = 0; i < list.size(); ++i) {
    list.set(i, text_of(texts[i]));
  }
}

static void write(PolicyVersion::Builder out, const tidemill::PolicyVersion& version) {
  out.setLine(version.line);
  out.setIncarnation(version.incarnation);
  out.setStep(version.step);
}
static Status read(PolicyVersion::Reader in, tidemill::PolicyVersion& version) {
  version = {in.getLine(), in.getIncarnation(), in.getStep()};
  return {};
}

// -- requests and results -------------------------------------------------------------------------

static void write(LogitBias::Builder out, const std::pair<std::int32_t, float>& bias) {
  out.setToken(bias.first);
  out.setBias(bias.second);
}
static Status read(LogitBias::Reader in, std::pair<std::int32_t, float>& bias) {
  bias = {in.getToken(), in.getBias()};
  return {};
}

static void write(SamplingOptions::Builder out, const engines::SamplingOptions& options) {
  out.setTemperature(options.temperature);
  out.setTopK(options.top_k);
  out.setTopP(options.top_p);
  out.setMinP(options.min_p);
  out.setRepetitionPenalty(options.repetition_penalty);
  out.setFrequencyPenalty(options.frequency_penalty);
  out.setPresencePenalty(options.presence_penalty);
  write_list(options.logit_bias, [&](unsigned size) { return out.initLogitBias(size); });
}
static Status read(SamplingOptions::Reader in, engines::SamplingOptions& options) {
  options.temperature = in.getTemperature();
  options.top_k = in.getTopK();
  options.top_p = in.getTopP();
  options.min_p = in.getMinP();
  options.repetition_penalty = in.getRepetitionPenalty();
  options.frequency_penalty = in.getFrequencyPenalty();
  options.presence_penalty = in.getPresencePenalty();
  return read_list(in.getLogitBias(), options.logit_bias);
}

static void write(RolloutRequest::Builder out, const engines::RolloutRequest& request) {
  TIDEMILL_CHECK(!request.constraint.is_set) << "a constraint does not leave its process";
  out.setId(request.id.value);
  write_numbers(request.prompt_ids, [&](unsigned size) { return out.initPromptIds(size); });
  write(out.initSampling(), request.sampling);
  out.setSeed(request.seed);
  out.setHasDrawKey(request.draw_key.is_set);
  out.setDrawKey(request.draw_key.value);
  out.setMaxNewTokens(request.max_new_tokens);
  write_numbers(request.stop_ids, [&](unsigned size) { return out.initStopIds(size); });
  write_texts(request.stop_strings,
              out.initStopStrings(static_cast<unsigned>(request.stop_strings.size())));
  out.setAdapter(text_of(request.adapter));
  out.setMinStep(request.min_step);
  out.setTimeLimitNs(std::min(request.time_limit, kLongestDuration).count());
  out.setKeepRows(request.keep_rows);
  out.setPromptLogprobs(request.prompt_logprobs);
  out.setTopLogprobs(request.top_logprobs);
  out.setPromptTopLogprobs(request.prompt_top_logprobs);
  out.setPromptLogits(request.prompt_logits);
  out.setPriority(static_cast<std::uint16_t>(request.priority));
  out.setTenant(text_of(request.tenant));
  out.setCacheSalt(text_of(request.cache_salt));
}
static Status read(RolloutRequest::Reader in, engines::RolloutRequest& request) {
  request.id.value = in.getId();
  read_numbers(in.getPromptIds(), request.prompt_ids);
  TIDEMILL_RETURN_IF_ERROR(read(in.getSampling(), request.sampling));
  request.seed = in.getSeed();
  request.draw_key.is_set = in.getHasDrawKey();
  request.draw_key.value = in.getDrawKey();
  request.max_new_tokens = in.getMaxNewTokens();
  read_numbers(in.getStopIds(), request.stop_ids);
  for (const capnp::Text::Reader text : in.getStopStrings()) {
    request.stop_strings.push_back(read_text(text));
  }
  request.adapter = read_text(in.getAdapter());
  request.min_step = in.getMinStep();
  request.time_limit = Duration(in.getTimeLimitNs());  // the engine refuses a negative one
  if (request.time_limit > kLongestDuration) {
    return corrupt_data("time_limit_ns " + std::to_string(in.getTimeLimitNs()) +
                        " is out of range");
  }
  request.keep_rows = in.getKeepRows();
  request.prompt_logprobs = in.getPromptLogprobs();
  request.top_logprobs = in.getTopLogprobs();
  request.prompt_top_logprobs = in.getPromptTopLogprobs();
  request.prompt_logits = in.getPromptLogits();
  request.tenant = read_text(in.getTenant());
  request.cache_salt = read_text(in.getCacheSalt());
  return read_enum(in.getPriority(), engines::Priority::kHigh, "priority", request.priority);
}

static void write(VersionSpan::Builder out, const engines::VersionSpan& span) {
  out.setLine(span.version.line);
  out.setIncarnation(span.version.incarnation);
  out.setStep(span.version.step);
  out.setNumTokens(span.num_tokens);
}
static Status read(VersionSpan::Reader in, engines::VersionSpan& span) {
  span = {{in.getLine(), in.getIncarnation(), in.getStep()}, in.getNumTokens()};
  return {};
}

static void write(TokenLogprob::Builder out, const engines::TokenLogprob& token) {
  out.setToken(token.token);
  out.setLogprob(token.logprob);
}
static Status read(TokenLogprob::Reader in, engines::TokenLogprob& token) {
  token = {in.getToken(), in.getLogprob()};
  return {};
}

static void write(RolloutResult::Builder out, const engines::RolloutResult& result) {
  out.setId(result.id.value);
  write_numbers(result.response_ids, [&](unsigned size) { return out.initResponseIds(size); });
  write_numbers(result.behavior_logprobs,
                [&](unsigned size) { return out.initBehaviorLogprobs(size); });
  write_list(result.versions, [&](unsigned size) { return out.initVersions(size); });
  out.setFinishReason(static_cast<std::uint16_t>(result.finish_reason));
  out.setError(text_of(result.error));
  write_numbers(result.prompt_logprobs,
                [&](unsigned size) { return out.initPromptLogprobs(size); });
  write_numbers(result.prompt_logits, [&](unsigned size) { return out.initPromptLogits(size); });
  write_list(result.top_logprobs, [&](unsigned size) { return out.initTopLogprobs(size); });
  write_list(result.prompt_top_logprobs,
             [&](unsigned size) { return out.initPromptTopLogprobs(size); });
  out.setCachedTokens(result.cached_tokens);
}
static Status read(RolloutResult::Reader in, engines::RolloutResult& result) {
  result.id.value = in.getId();
  read_numbers(in.getResponseIds(), result.response_ids);
  read_numbers(in.getBehaviorLogprobs(), result.behavior_logprobs);
  TIDEMILL_RETURN_IF_ERROR(read_list(in.getVersions(), result.versions));
  TIDEMILL_RETURN_IF_ERROR(read_enum(in.getFinishReason(), engines::FinishReason::kFailed,
                                     "finish reason", result.finish_reason));
  result.error = read_text(in.getError());
  read_numbers(in.getPromptLogprobs(), result.prompt_logprobs);
  read_numbers(in.getPromptLogits(), result.prompt_logits);
  result.cached_tokens = in.getCachedTokens();
  TIDEMILL_RETURN_IF_ERROR(read_list(in.getTopLogprobs(), result.top_logprobs));
  return read_list(in.getPromptTopLogprobs(), result.prompt_top_logprobs);
}

static void write(CancelRequest::Builder out, const SampleId& id) {
  out.setId(id.value);
}
static Status read(CancelRequest::Reader in, SampleId& id) {
  id.value = in.getId();
  return {};
}

// -- tensors --------------------------------------------------------------------------------------

struct NamedTensor {
  std::string name;
  tidemill::Tensor tensor;
};

static void write(Tensor::Builder out, const TensorMap::value_type& named) {
  const auto& [name, tensor] = named;
  out.setName(text_of(name));
  out.setDtype(static_cast<std::uint16_t>(tensor.dtype));
  write_numbers(tensor.shape, [&](unsigned size) { return out.initShape(size); });
  write(out.initBuffer(), tensor.data.identity());
}
// Returns why the fields of a tensor do not fit together, or nothing. The errors leave out what the
// peer has written, which may be long.
static std::optional<std::string> find_fault(const tidemill::Tensor& tensor,
                                             const tidemill::BufferIdentity& data) {
  if (std::ranges::any_of(tensor.shape, [](std::int64_t extent) { return extent < 0; })) {
    return "a negative extent";
  }
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes.has_value()) {
    return "type and shape do not fit together";
  }
  if (*bytes != data.length) {
    return "a buffer of " + std::to_string(data.length) + " bytes instead of " +
           std::to_string(*bytes);
  }
  if (!can_exist(data)) {
    return "a buffer that no segment contains";
  }
  return std::nullopt;
}
static Status read(Tensor::Reader in, NamedTensor& named) {
  named.name = read_text(in.getName());
  tidemill::Tensor& tensor = named.tensor;
  TIDEMILL_RETURN_IF_ERROR(read_enum(in.getDtype(), kLastDType, "dtype", tensor.dtype));
  read_numbers(in.getShape(), tensor.shape);
  const tidemill::BufferIdentity data = read_identity(in.getBuffer(), tensor.dtype);
  if (const auto fault = find_fault(tensor, data); fault.has_value()) {
    return corrupt_data("a tensor with " + *fault);
  }
  tensor.data = Buffer::named(data);
  return {};
}

template <class List>
Status read_tensors(List list, TensorMap& out) {
  std::vector<NamedTensor> tensors;
  TIDEMILL_RETURN_IF_ERROR(read_list(list, tensors));
  for (NamedTensor& named : tensors) {
    if (!out.emplace(std::move(named.name), std::move(named.tensor)).second) {
      return corrupt_data("two tensors with one name");
    }
  }
  return {};
}

static void write(Snapshot::Builder out, const engines::Snapshot& snapshot) {
  write(out.initVersion(), snapshot.version);
  out.setBaseDigest(text_of(snapshot.base_digest));
  out.setAdapterDigest(text_of(snapshot.adapter_digest));
  write_list(snapshot.base, [&](unsigned size) { return out.initBase(size); });
  write_list(snapshot.adapter, [&](unsigned size) { return out.initAdapter(size); });
}
static Status read(Snapshot::Reader in, engines::Snapshot& snapshot) {
  TIDEMILL_RETURN_IF_ERROR(read(in.getVersion(), snapshot.version));
  snapshot.base_digest = read_text(in.getBaseDigest());
  snapshot.adapter_digest = read_text(in.getAdapterDigest());
  TIDEMILL_RETURN_IF_ERROR(read_tensors(in.getBase(), snapshot.base));
  return read_tensors(in.getAdapter(), snapshot.adapter);
}

// -- adapters -------------------------------------------------------------------------------------

static void write(AdapterRequest::Builder out, const actors::AdapterRequest& request) {
  out.setAction(static_cast<std::uint16_t>(request.action));
  out.setName(text_of(request.name));
  out.setPath(text_of(request.path));
  write(out.initVersion(), request.version);
  out.setConfig(text_of(request.config));
  write_list(request.tensors, [&](unsigned size) { return out.initTensors(size); });
  out.setCreated(request.created);
}
static Status read(AdapterRequest::Reader in, actors::AdapterRequest& request) {
  TIDEMILL_RETURN_IF_ERROR(
      read_enum(in.getAction(), AdapterAction::kUnload, "action", request.action));
  request.name = read_text(in.getName());
  request.path = read_text(in.getPath());
  TIDEMILL_RETURN_IF_ERROR(read(in.getVersion(), request.version));
  request.config = read_text(in.getConfig());
  request.created = in.getCreated();
  return read_tensors(in.getTensors(), request.tensors);
}

static void write(LoadedAdapter::Builder out, const engines::LoadedAdapter& adapter) {
  out.setName(text_of(adapter.name));
  write(out.initVersion(), adapter.version);
  out.setSizeBytes(adapter.size_bytes);
  out.setNumRequests(adapter.num_requests);
  out.setCreated(adapter.created);
}
static Status read(LoadedAdapter::Reader in, engines::LoadedAdapter& adapter) {
  adapter.name = read_text(in.getName());
  adapter.size_bytes = in.getSizeBytes();
  adapter.num_requests = in.getNumRequests();
  adapter.created = in.getCreated();
  return read(in.getVersion(), adapter.version);
}

static void write(AdapterList::Builder out, const actors::AdapterList& list) {
  write_list(list.adapters, [&](unsigned size) { return out.initAdapters(size); });
}
static Status read(AdapterList::Reader in, actors::AdapterList& list) {
  return read_list(in.getAdapters(), list.adapters);
}

// -- devices --------------------------------------------------------------------------------------

static void write(StartDevice::Builder out, const actors::StartDevice& start) {
  out.setKvBytes(start.kv_bytes);
  out.setRolloutRows(start.rollout_rows);
  out.setSampledRows(start.sampled_rows);
  write(out.initSegments(), start.segments);
}
static Status read(StartDevice::Reader in, actors::StartDevice& start) {
  start.kv_bytes = in.getKvBytes();
  start.rollout_rows = in.getRolloutRows();
  start.sampled_rows = in.getSampledRows();
  if (start.kv_bytes < 1 || start.rollout_rows < 1 || start.sampled_rows < 1) {
    return corrupt_data("a size below 1");
  }
  return read(in.getSegments(), start.segments);
}

}  // namespace tidemill::actors::wire

namespace tidemill::actors {

Buffer to_wire(const engines::RolloutRequest& message) {
  return encode<wire::RolloutRequest>(message);
}
template <>
Result<engines::RolloutRequest> from_wire(const Buffer& body) {
  return decode<wire::RolloutRequest, engines::RolloutRequest>(body, "rollout request");
}

Buffer to_wire(const engines::RolloutResult& message) {
  return encode<wire::RolloutResult>(message);
}
template <>
Result<engines::RolloutResult> from_wire(const Buffer& body) {
  return decode<wire::RolloutResult, engines::RolloutResult>(body, "rollout result");
}

Buffer to_wire(const SampleId& message) {
  return encode<wire::CancelRequest>(message);
}
template <>
Result<SampleId> from_wire(const Buffer& body) {
  return decode<wire::CancelRequest, SampleId>(body, "cancel");
}

Buffer to_wire(const engines::Snapshot& message) {
  return encode<wire::Snapshot>(message);
}
template <>
Result<engines::Snapshot> from_wire(const Buffer& body) {
  return decode<wire::Snapshot, engines::Snapshot>(body, "snapshot");
}

Buffer to_wire(const PolicyVersion& message) {
  return encode<wire::PolicyVersion>(message);
}
template <>
Result<PolicyVersion> from_wire(const Buffer& body) {
  return decode<wire::PolicyVersion, PolicyVersion>(body, "loaded version");
}

Buffer to_wire(const AdapterRequest& message) {
  return encode<wire::AdapterRequest>(message);
}
template <>
Result<AdapterRequest> from_wire(const Buffer& body) {
  return decode<wire::AdapterRequest, AdapterRequest>(body, "adapter request");
}

Buffer to_wire(const AdapterList& message) {
  return encode<wire::AdapterList>(message);
}
template <>
Result<AdapterList> from_wire(const Buffer& body) {
  return decode<wire::AdapterList, AdapterList>(body, "adapter list");
}

Buffer to_wire(const StartDevice& message) {
  return encode<wire::StartDevice>(message);
}
template <>
Result<StartDevice> from_wire(const Buffer& body) {
  return decode<wire::StartDevice, StartDevice>(body, "start device");
}

}  // namespace tidemill::actors
