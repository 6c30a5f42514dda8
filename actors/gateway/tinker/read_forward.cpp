// SPDX-License-Identifier: Apache-2.0
// Reads the protobuf body of /api/v1/forward_backward.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "actors/gateway/tinker/read_calls.hpp"
#include "actors/gateway/tinker/tinker_wire.pb.h"
#include "actors/gateway/tinker/zstd.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"

// Before version 22, protobuf writes a line about invalid UTF-8 to stderr, unless it is silenced.
#if __has_include(<google/protobuf/stubs/logging.h>)
#include <google/protobuf/stubs/logging.h>
using ProtobufSilencer = google::protobuf::LogSilencer;
#else
struct ProtobufSilencer {};
#endif

namespace tidemill::actors::tinker {
namespace {

using engines::TokenSumKind;
using engines::TrainSequence;

static_assert(std::endian::native == std::endian::little, "arrays are little-endian bytes");

constexpr std::size_t kMaxMessageBytes = 600;
// Together with the bound of the body, this bounds the memory of the sequences.
constexpr int kMaxData = 4096;

// The fields of a body, in all its messages. Parsing takes up to 200 bytes for each.
constexpr std::size_t kMaxFields = 500'000;

// The messages of a body whose fields are counted.
enum class Part : std::uint8_t { kRequest, kDatum, kChunk, kText, kInput, kTensor, kOther };

Part part_in(Part message, int field) {
  switch (message) {
    case Part::kRequest:
      return field == 3 ? Part::kDatum : field == 5 || field == 7 ? Part::kInput : Part::kOther;
    case Part::kDatum: return field == 1 ? Part::kChunk : field == 2 ? Part::kInput : Part::kText;
    case Part::kChunk: return Part::kText;
    case Part::kInput: return field == 2 ? Part::kTensor : Part::kOther;
    case Part::kTensor: return field == 2 ? Part::kText : Part::kOther;
    default: return Part::kOther;
  }
}

// Counts the fields of a message, without making it, down from `left`. Returns whether they are not
// too many. Stops without an objection where the bytes are no message: parsing then fails there.
bool count_fields(google::protobuf::io::CodedInputStream& bytes, Part message, std::size_t& left) {
  using google::protobuf::internal::WireFormatLite;
  while (const std::uint32_t tag = bytes.ReadTag()) {
    if (left-- == 0) {
      return false;
    }
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&bytes, tag)) {
        return true;
      }
      continue;
    }
    std::uint32_t size = 0;
    if (!bytes.ReadVarint32(&size)) {
      return true;
    }
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const Part inner = part_in(message, field);
    constexpr int kShape = 4;  // packed: each byte may be a number
    if (message == Part::kTensor && field == kShape) {
      if (size > left) {
        return false;
      }
      left -= size;
    }
    if (inner == Part::kOther) {
      if (!bytes.Skip(static_cast<int>(size))) {
        return true;
      }
      continue;
    }
    const auto limit = bytes.PushLimit(static_cast<int>(size));
    if (!count_fields(bytes, inner, left)) {
      return false;
    }
    bytes.Skip(bytes.BytesUntilLimit());
    bytes.PopLimit(limit);
  }
  return true;
}

// Where a field is: "data[3].loss_fn_inputs.weights".
std::string input_path(std::size_t datum, std::string_view name) {
  return "data[" + std::to_string(datum) + "].loss_fn_inputs." + std::string(name);
}

Status refused(const std::string& path, std::string_view problem) {
  return invalid_argument(path + ": " + std::string(problem));
}

// Returns the values of packed bytes. The caller has checked their number.
template <class T>
std::vector<T> unpacked(const std::string& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) {
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  }
  return out;
}

// Returns the input tokens of a datum.
Result<std::vector<std::int32_t>> read_input(const tinker_wire::Datum& datum, std::size_t index,
                                             const ModelLimits& model) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < datum.model_input_size(); ++i) {
    const tinker_wire::Chunk& chunk = datum.model_input(i);
    const std::string path =
        "data[" + std::to_string(index) + "].model_input[" + std::to_string(i) + "]";
    if (chunk.has_image()) {
      return refused(path + ".image", "images are not supported");
    }
    if (chunk.has_dmel()) {
      return refused(path + ".dmel", "audio is not supported");
    }
    if (!chunk.has_encoded_text()) {
      return refused(path, "an unknown kind of chunk; only tokens are supported");
    }
    const std::string& bytes = chunk.encoded_text().tokens();
    if (bytes.size() % sizeof(std::int32_t) != 0) {
      return refused(path + ".encoded_text.tokens", "must be packed int32 values");
    }
    for (const std::int32_t id : unpacked<std::int32_t>(bytes)) {
      if (id < 0 || id >= model.vocab_size) {
        return refused(path + ".encoded_text.tokens",
                       "the token " + std::to_string(id) + " is not in the vocabulary");
      }
      ids.push_back(id);
    }
  }
  if (ids.empty()) {
    return refused("data[" + std::to_string(index) + "].model_input", "has no token");
  }
  return ids;
}

// Checks that a tensor is dense, with one value of `item_bytes` for each of `length` positions.
Status check_tensor(const tinker_wire::Tensor& tensor, const std::string& path, std::size_t length,
                    std::size_t item_bytes) {
  if (tensor.has_sparse_csr()) {
    return refused(path, "sparse tensors are not supported");
  }
  if (tensor.shape_size() > 1) {
    return refused(path, "must have one value for each position; several are not supported");
  }
  const bool shape_fits =
      tensor.shape_size() == 0 || tensor.shape(0) == static_cast<std::int64_t>(length);
  if (!shape_fits || tensor.dense().size() != length * item_bytes) {
    return refused(path, "must have " + std::to_string(length) + " values, as many as model_input");
  }
  return {};
}

Result<std::vector<std::int64_t>> read_targets(const tinker_wire::Tensor& tensor,
                                               const std::string& path, std::size_t length) {
  if (tensor.dtype() != tinker_wire::DTYPE_INT64) {
    return refused(path, "must be an int64 tensor");
  }
  TIDEMILL_RETURN_IF_ERROR(check_tensor(tensor, path, length, sizeof(std::int64_t)));
  return unpacked<std::int64_t>(tensor.dense());
}

// Reads a column of reals. Integers are converted.
Result<std::vector<float>> read_reals(const tinker_wire::Tensor& tensor, const std::string& path,
                                      std::size_t length) {
  std::vector<float> out;
  if (tensor.dtype() == tinker_wire::DTYPE_INT64) {
    TIDEMILL_RETURN_IF_ERROR(check_tensor(tensor, path, length, sizeof(std::int64_t)));
    for (const std::int64_t value : unpacked<std::int64_t>(tensor.dense())) {
      out.push_back(static_cast<float>(value));
    }
  } else if (tensor.dtype() == tinker_wire::DTYPE_FLOAT32) {
    TIDEMILL_RETURN_IF_ERROR(check_tensor(tensor, path, length, sizeof(float)));
    out = unpacked<float>(tensor.dense());
  } else {
    return refused(path, "must be a float32 tensor");
  }
  const auto bad =
      std::find_if_not(out.begin(), out.end(), [](float x) { return std::isfinite(x); });
  if (bad != out.end()) {
    return refused(path + "[" + std::to_string(bad - out.begin()) + "]", "is not finite");
  }
  return out;
}

// Returns the names of the inputs that a loss reads besides target_tokens.
std::vector<std::string_view> input_names(TokenSumKind kind) {
  switch (kind) {
    case TokenSumKind::kCrossEntropy: return {"weights"};
    case TokenSumKind::kGspo: return {"advantages", "logprobs", "sequence_ratio_mask"};
    default: return {"advantages", "logprobs"};
  }
}

// Shifts a column from positions to tokens: token 0 is not predicted.
std::vector<float> shifted(const std::vector<float>& column) {
  std::vector<float> out(column.size() + 1, 0.0F);
  std::copy(column.begin(), column.end(), out.begin() + 1);
  return out;
}

// Reads the columns of a loss into a sequence of `length` + 1 tokens.
Status read_columns(const tinker_wire::Datum& datum, std::size_t index, TokenSumKind kind,
                    std::size_t length, TrainSequence& sequence) {
  const std::vector<std::string_view> names = input_names(kind);
  const std::array<std::vector<float>*, 3> columns = {
      &sequence.advantages, &sequence.behavior_logprobs, &sequence.token_weights};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string path = input_path(index, names[i]);
    const auto found = datum.loss_fn_inputs().find(std::string(names[i]));
    if (found == datum.loss_fn_inputs().end()) {
      return refused(path, "missing");
    }
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<float> column,
                              read_reals(found->second, path, length));
    *columns[i] = shifted(column);
  }
  for (float& marked : sequence.token_weights) {
    marked = marked != 0.0F ? 1.0F : 0.0F;
  }
  std::set<std::string> others;  // sorted, so that the message does not depend on the map's order
  for (const auto& [name, tensor] : datum.loss_fn_inputs()) {
    if (name != "target_tokens" && std::find(names.begin(), names.end(), name) == names.end()) {
      others.insert(name);
    }
  }
  if (!others.empty()) {
    return refused(input_path(index, *others.begin()), "the loss does not read this input");
  }
  return {};
}

// Whether a position without its own target in the sequence would change the loss.
bool matters(const TrainSequence& sequence, TokenSumKind kind, std::size_t token) {
  return kind == TokenSumKind::kDro || sequence.advantages[token] != 0.0F ||
         (kind == TokenSumKind::kGspo && sequence.token_weights[token] != 0.0F);
}

Result<TrainSequence> read_datum(const tinker_wire::Datum& datum, std::size_t index,
                                 TokenSumKind kind, const ModelLimits& model) {
  TrainSequence sequence;
  sequence.id = SampleId{index};
  TIDEMILL_ASSIGN_OR_RETURN(sequence.ids, read_input(datum, index, model));
  const std::size_t length = sequence.ids.size();
  if (static_cast<std::int64_t>(length) >= model.max_train_tokens) {
    return refused("data[" + std::to_string(index) + "].model_input",
                   "has " + std::to_string(length + 1) +
                       " tokens with the target of the last one, and at most " +
                       std::to_string(model.max_train_tokens) +
                       " are allowed (the context, and serve.tuning.job_tokens)");
  }
  const std::string path = input_path(index, "target_tokens");
  const auto found = datum.loss_fn_inputs().find("target_tokens");
  if (found == datum.loss_fn_inputs().end()) {
    return refused(path, "missing");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::int64_t> targets,
                            read_targets(found->second, path, length));
  TIDEMILL_RETURN_IF_ERROR(read_columns(datum, index, kind, length, sequence));
  const std::int64_t last = targets.back();
  const bool last_is_token = last >= 0 && last < model.vocab_size;
  sequence.ids.push_back(last_is_token ? static_cast<std::int32_t>(last) : 0);
  sequence.response_mask.assign(length + 1, 0);
  for (std::size_t t = 0; t < length; ++t) {
    const bool follows = t + 1 == length
                             ? last_is_token
                             : targets[t] == static_cast<std::int64_t>(sequence.ids[t + 1]);
    if (!follows && matters(sequence, kind, t + 1)) {
      return refused(path + "[" + std::to_string(t) + "]",
                     "must be the next token of model_input where the loss counts the position");
    }
    sequence.response_mask[t + 1] = follows ? 1 : 0;
  }
  return sequence;
}

using NumberMap = std::map<std::string, double>;

// Returns the numbers of loss_fn_config.
Result<NumberMap> read_config(const tinker_wire::ForwardBackwardRequest& request) {
  NumberMap numbers(request.loss_fn_config().begin(), request.loss_fn_config().end());
  for (const auto& [name, value] : std::map<std::string, tinker_wire::LossConfigValue>(
           request.loss_fn_config_v2().begin(), request.loss_fn_config_v2().end())) {
    if (value.value_case() != tinker_wire::LossConfigValue::kNumber) {
      return refused("loss_fn_config." + name, "must be a number");
    }
    numbers[name] = value.number();
  }
  return numbers;
}

Result<engines::TokenSumOptions> read_loss(const tinker_wire::ForwardBackwardRequest& request) {
  const std::optional<TokenSumKind> kind = engines::token_sum_kind(request.loss_fn());
  if (!kind) {
    return refused("loss_fn", "the loss " + quote(request.loss_fn()) +
                                  " is not supported; the losses are cross_entropy, "
                                  "importance_sampling, ppo, cispo, dro and gspo");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const NumberMap numbers, read_config(request));
  engines::TokenSumOptions options = engines::default_options(*kind);
  const bool clips =
      *kind == TokenSumKind::kPpo || *kind == TokenSumKind::kCispo || *kind == TokenSumKind::kGspo;
  for (const auto& [name, value] : numbers) {
    double* option = nullptr;
    if (clips && name == "clip_low_threshold") {
      option = &options.ratio_low;
    } else if (clips && name == "clip_high_threshold") {
      option = &options.ratio_high;
    } else if (*kind == TokenSumKind::kDro && name == "beta") {
      option = &options.beta;
    } else {
      return refused("loss_fn_config." + name, "the loss has no such parameter");
    }
    if (!std::isfinite(value) || value < 0.0) {
      return refused("loss_fn_config." + name, "must be finite and at least 0");
    }
    *option = value;
  }
  if (options.ratio_low > options.ratio_high) {
    return refused("loss_fn_config.clip_low_threshold", "must not exceed clip_high_threshold");
  }
  return options;
}

Result<ForwardCall> read_request(const tinker_wire::ForwardBackwardRequest& request,
                                 const ModelLimits& model) {
  ForwardCall call;
  call.forward_only = request.forward_only();
  TIDEMILL_ASSIGN_OR_RETURN(call.loss, read_loss(request));
  if (request.data_size() < 1 || request.data_size() > kMaxData) {
    return refused("data", "must have 1 to " + std::to_string(kMaxData) + " entries");
  }
  for (int i = 0; i < request.data_size(); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(
        TrainSequence sequence,
        read_datum(request.data(i), static_cast<std::size_t>(i), call.loss.kind, model));
    call.sequences.push_back(std::move(sequence));
  }
  return call;
}

RefusedCall refused_call(const Status& status, std::optional<QueueTurn> turn = std::nullopt,
                         bool backward = false) {
  const std::string& message = status.message();
  const std::size_t colon = turn.has_value() ? message.find(": ") : std::string::npos;
  return {{400, clipped(message, kMaxMessageBytes),
           colon == std::string::npos ? "" : message.substr(0, colon)},
          std::move(turn),
          backward};
}

bool parse(std::string_view body, tinker_wire::ForwardBackwardRequest& request) {
  [[maybe_unused]] const ProtobufSilencer silencer;
  return body.size() <= kMaxForwardBytes &&
         request.ParseFromArray(body.data(), static_cast<int>(body.size()));
}

}  // namespace

CallResult<ForwardCall> read_forward(std::string_view body, std::string_view content_encoding,
                                     const ModelLimits& model) {
  std::string plain;
  if (content_encoding == "zstd") {
    Result<std::string> decompressed = decompress_zstd(body, kMaxForwardBytes);
    if (!decompressed.ok()) {
      return refused_call(decompressed.status());
    }
    plain = std::move(decompressed).value();
    body = plain;
  } else if (!content_encoding.empty() && content_encoding != "identity") {
    return RefusedCall{{415, "the Content-Encoding must be zstd or identity"}, std::nullopt};
  }
  google::protobuf::io::CodedInputStream bytes(reinterpret_cast<const std::uint8_t*>(body.data()),
                                               static_cast<int>(body.size()));
  if (std::size_t left = kMaxFields; !count_fields(bytes, Part::kRequest, left)) {
    return RefusedCall{{400, "the body has more than " + std::to_string(kMaxFields) + " fields"},
                       std::nullopt};
  }
  tinker_wire::ForwardBackwardRequest request;
  if (!parse(body, request)) {
    return refused_call(corrupt_data("the body is not a valid ForwardBackwardRequest"));
  }
  if (request.model_id().empty() || request.seq_id() < 1) {
    return RefusedCall{{400, "seq_id: model_id and a seq_id of at least 1 must be given", "seq_id"},
                       std::nullopt};
  }
  QueueTurn turn{request.model_id(), request.seq_id()};
  Result<ForwardCall> call = read_request(request, model);
  if (!call.ok()) {
    return refused_call(call.status(), std::move(turn), !request.forward_only());
  }
  call.value().turn = std::move(turn);
  return std::move(call).value();
}

}  // namespace tidemill::actors::tinker
