// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/trained_parameters.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/tensor/float_tensor.hpp"
#include "engines/optimizer/gradient_norm.hpp"

namespace tidemill::engines {
namespace {

constexpr const char* kFirstMoment = "first_moment.";
constexpr const char* kSecondMoment = "second_moment.";
constexpr const char* kWeight = "weight.";
constexpr const char* kStep = "step";

// Returns the tensors whose names begin with `prefix`, with the prefix removed.
TensorMap without_prefix(const TensorMap& tensors, const std::string& prefix) {
  TensorMap found;
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix);
       ++it) {
    found.emplace(it->first.substr(prefix.size()), it->second);
  }
  return found;
}

// Checks that `tensors` has exactly the tensors of `set`.
Status check_tensors_of(const ParameterSet& set, const TensorMap& tensors) {
  for (const ParameterSet::Entry& entry : set.entries()) {
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(tensors, entry.name, entry.shape));
  }
  for (const auto& [name, tensor] : tensors) {
    if (set.find(name) == nullptr) {
      return invalid_argument("tensor " + name + " is not a trained parameter");
    }
  }
  return {};
}

Result<std::int64_t> step_of(const TensorMap& state) {
  const auto found = state.find(kStep);
  if (found == state.end() || found->second.dtype != DType::kI64 ||
      found->second.shape != std::vector<std::int64_t>{1} ||
      found->second.data.size_bytes() != sizeof(std::int64_t) ||
      found->second.data.as<std::int64_t>()[0] < 0) {
    return invalid_argument("optimizer state: needs a tensor \"step\" of one nonnegative I64");
  }
  return found->second.data.as<std::int64_t>()[0];
}

// Checks that `weights` round to `tensors`, so that both belong to the same step.
Status check_rounded(const TensorMap& weights, const TensorMap& tensors, DType published) {
  for (const auto& [name, weight] : weights) {
    const Tensor rounded = to_float_type(weight, published);
    if (!std::ranges::equal(rounded.data.bytes(), tensors.at(name).data.bytes())) {
      return invalid_argument("optimizer state: the weights of tensor " + name +
                              " do not match the snapshot");
    }
  }
  return {};
}

Result<std::string> first_not_finite(const ParameterSet& set, Ops& ops) {
  for (const ParameterSet::Entry& entry : set.entries()) {
    TIDEMILL_ASSIGN_OR_RETURN(const double squares, ops.squared_norm(set.values(entry)));
    if (!std::isfinite(squares)) {
      return entry.name;
    }
  }
  return std::string();
}

}  // namespace

Status validate(const OptimizerOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(validate(options.adamw));
  TIDEMILL_RETURN_IF_ERROR(validate(options.schedule));
  if (options.total_steps < 1) {
    return invalid_argument("total_steps: " + std::to_string(options.total_steps) +
                            " is less than 1");
  }
  if (!std::isfinite(options.weight_decay) || options.weight_decay < 0.0) {
    return invalid_argument("weight_decay: " + std::to_string(options.weight_decay) +
                            " is negative or not finite");
  }
  if (!std::isfinite(options.max_grad_norm) || options.max_grad_norm < 0.0) {
    return invalid_argument("max_grad_norm: " + std::to_string(options.max_grad_norm) +
                            " is negative or not finite");
  }
  return {};
}

TrainedParameters::TrainedParameters(const TensorShapes& shapes, const OptimizerOptions& options,
                                     DType published, Ops& ops)
    : ops_(ops),
      options_(options),
      published_(published),
      weights_(shapes, ops),
      first_moment_(shapes, ops),
      second_moment_(shapes, ops) {}

// Calls `update(decays, first, count)` for each run of adjacent tensors that agree on weight decay.
template <class Update>
void TrainedParameters::for_each_group(const Update& update) const {
  bool group_decays = false;
  std::int64_t first = 0;
  std::int64_t count = 0;
  for (const ParameterSet::Entry& entry : weights_.entries()) {
    // Vectors are gains and biases. The vectors of IA3 are gains too, but are stored as matrices of
    // one row or column.
    const bool matrix = entry.shape.size() > 1 && !entry.name.ends_with(".ia3_l");
    const bool decays = options_.weight_decay_exclude == DecayExclude::kNone || matrix;
    if (decays != group_decays && count > 0) {
      update(group_decays, first, count);
      first += count;
      count = 0;
    }
    group_decays = decays;
    count += entry.size;
  }
  update(group_decays, first, count);
}

Result<UpdateReport> TrainedParameters::apply(const ParameterSet& gradient) {
  UpdateReport report;
  TIDEMILL_ASSIGN_OR_RETURN(const double squares, ops_.squared_norm(gradient.values()));
  report.gradient_norm = std::sqrt(squares);
  if (!std::isfinite(report.gradient_norm)) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string name, first_not_finite(gradient, ops_));
    return Status(Errc::kInternal, "gradient of tensor " + name + " is not finite");
  }
  report.optimizer_step = ++step_;
  report.learning_rate = learning_rate_at(options_.schedule, step_, options_.total_steps);
  AdamWStep step;
  step.learning_rate = report.learning_rate;
  step.gradient_scale = clip_scale(report.gradient_norm, options_.max_grad_norm);
  step.step = step_;
  for_each_group([&](bool decays, std::int64_t first, std::int64_t count) {
    step.weight_decay = decays ? options_.weight_decay : 0.0;
    ops_.adamw(
        adamw_factors<float>(options_.adamw, step),
        {weights_.values().slice(first, count), gradient.values().slice(first, count),
         first_moment_.values().slice(first, count), second_moment_.values().slice(first, count)});
  });
  return report;
}

Status TrainedParameters::load(const TensorMap& tensors) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors_of(weights_, tensors));
  return weights_.load(tensors);
}

TensorMap TrainedParameters::state() const {
  std::vector<std::pair<const char*, const ParameterSet*>> parts{{kFirstMoment, &first_moment_},
                                                                 {kSecondMoment, &second_moment_}};
  if (published_ != DType::kF32) {
    parts.emplace_back(kWeight, &weights_);
  }
  TensorMap state;
  for (const auto& [prefix, values] : parts) {
    for (auto& [name, tensor] : values->to_tensors(DType::kF32)) {
      state.emplace(prefix + name, tensor);
    }
  }
  Tensor step;
  step.dtype = DType::kI64;
  step.shape = {1};
  step.data = Buffer::adopt(std::vector<std::int64_t>{step_}, DType::kI64);
  state.emplace(kStep, std::move(step));
  return state;
}

Status TrainedParameters::restore(const TensorMap& tensors, const TensorMap& state) {
  const TensorMap first = without_prefix(state, kFirstMoment);
  const TensorMap second = without_prefix(state, kSecondMoment);
  TIDEMILL_RETURN_IF_ERROR(check_tensors_of(weights_, tensors));
  TIDEMILL_RETURN_IF_ERROR(
      check_tensors_of(first_moment_, first).with_context("optimizer state: first moment"));
  TIDEMILL_RETURN_IF_ERROR(
      check_tensors_of(second_moment_, second).with_context("optimizer state: second moment"));
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t step, step_of(state));
  const TensorMap unrounded = without_prefix(state, kWeight);
  const bool rounded = published_ != DType::kF32;
  if (rounded) {
    TIDEMILL_RETURN_IF_ERROR(
        check_tensors_of(weights_, unrounded).with_context("optimizer state: weights"));
    TIDEMILL_RETURN_IF_ERROR(check_rounded(unrounded, tensors, published_));
  }
  const std::size_t weights = rounded ? unrounded.size() : 0;
  if (state.size() != first.size() + second.size() + weights + 1) {
    return invalid_argument("optimizer state: has unexpected tensors");
  }
  TIDEMILL_RETURN_IF_ERROR(weights_.load(rounded ? unrounded : tensors));
  TIDEMILL_RETURN_IF_ERROR(first_moment_.load(first));
  TIDEMILL_RETURN_IF_ERROR(second_moment_.load(second));
  step_ = step;
  return {};
}

}  // namespace tidemill::engines
