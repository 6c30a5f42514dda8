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

static_assert(kUnitElements % kNormBlock == 0, "the division of the norm would change bits");

Matrix row_of(Vector values) {
  return {values.data, 1, values.size, values.size};
}

ConstMatrix row_of(ConstVector values) {
  return {values.data, 1, values.size, values.size};
}

void copy_values(ConstVector from, Vector to, Ops& ops) {
  ops.copy(row_of(from), row_of(to));
}

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

bool is_frozen(const OptimStep& step, const ParameterSet::Entry& entry) {
  return std::ranges::find(step.frozen, entry.name) != step.frozen.end();
}

// Returns the name of the first tensor that the step changes and whose gradient is not finite.
Result<std::string> first_not_finite(const ParameterSet& gradient, const OptimStep& step,
                                     Ops& ops) {
  for (const ParameterSet::Entry& entry : gradient.entries()) {
    if (is_frozen(step, entry)) {
      continue;
    }
    TIDEMILL_ASSIGN_OR_RETURN(const double squares, ops.squared_norm(gradient.values(entry)));
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

Result<TrainedParameters> TrainedParameters::create(const TensorShapes& shapes,
                                                    const OptimizerOptions& options,
                                                    DType published, Ops& ops) {
  TrainedParameters parameters(options, published, ops);
  for (ParameterSet* set :
       {&parameters.weights_, &parameters.first_moment_, &parameters.second_moment_}) {
    TIDEMILL_ASSIGN_OR_RETURN(*set, ParameterSet::create(shapes, ops));
  }
  return parameters;
}

Status TrainedParameters::reserve_anchor() {
  TensorShapes shapes;
  std::int64_t largest = 0;
  for (const ParameterSet::Entry& entry : weights_.entries()) {
    shapes[entry.name] = entry.shape;
    largest = std::max(largest, entry.size);
  }
  TIDEMILL_ASSIGN_OR_RETURN(anchor_, ParameterSet::create(shapes, ops_));
  TIDEMILL_RETURN_IF_ERROR(difference_.reserve(1, std::min(largest, kUnitElements)));
  copy_anchor();
  return {};
}

void TrainedParameters::copy_anchor() {
  copy_values(weights_.values(), anchor_->values(), ops_);
}

OptimizerOptions TrainedParameters::optimizer_of(const OptimStep& step) const {
  OptimizerOptions optimizer = options_;
  optimizer.adamw.beta1 = step.beta1.value_or(optimizer.adamw.beta1);
  optimizer.adamw.beta2 = step.beta2.value_or(optimizer.adamw.beta2);
  optimizer.adamw.epsilon = step.epsilon.value_or(optimizer.adamw.epsilon);
  optimizer.weight_decay = step.weight_decay.value_or(optimizer.weight_decay);
  optimizer.max_grad_norm = step.max_grad_norm.value_or(optimizer.max_grad_norm);
  return optimizer;
}

Status TrainedParameters::check_step(const OptimStep& step) const {
  TIDEMILL_RETURN_IF_ERROR(validate(optimizer_of(step)));
  if (step.learning_rate.has_value() &&
      (!std::isfinite(*step.learning_rate) || *step.learning_rate < 0.0)) {
    return invalid_argument("learning_rate: " + std::to_string(*step.learning_rate) +
                            " is negative or not finite");
  }
  if (!std::isfinite(step.proximal) || step.proximal < 0.0) {
    return invalid_argument("proximal: " + std::to_string(step.proximal) +
                            " is negative or not finite");
  }
  if (step.proximal > 0.0 && !anchor_.has_value()) {
    return invalid_argument("proximal: the job was opened without `JobOptions::keeps_anchor`");
  }
  for (const std::string& name : step.frozen) {
    if (weights_.find(name) == nullptr) {
      return invalid_argument("frozen: tensor " + name + " is not a trained parameter");
    }
  }
  return {};
}

// Returns the elements that the step changes, in runs that agree on weight decay.
std::vector<TrainedParameters::Range> TrainedParameters::ranges_of(const OptimStep& step) const {
  std::vector<Range> ranges;
  for (const ParameterSet::Entry& entry : weights_.entries()) {
    if (is_frozen(step, entry)) {
      continue;
    }
    // Vectors are gains and biases. The vectors of IA3 are gains too, but are stored as matrices of
    // one row or column.
    const bool matrix = entry.shape.size() > 1 && !entry.name.ends_with(".ia3_l");
    const bool decays = options_.weight_decay_exclude == DecayExclude::kNone || matrix;
    if (!ranges.empty() && ranges.back().decays == decays &&
        ranges.back().first + ranges.back().count == entry.offset) {
      ranges.back().count += entry.size;
    } else {
      ranges.push_back({decays, entry.offset, entry.size});
    }
  }
  return ranges;
}

// Returns the ranges, joined wherever they touch.
std::vector<TrainedParameters::Range> TrainedParameters::join(const std::vector<Range>& ranges) {
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && joined.back().first + joined.back().count == range.first) {
      joined.back().count += range.count;
    } else {
      joined.push_back({false, range.first, range.count});
    }
  }
  return joined;
}

void TrainedParameters::begin_step(ParameterSet& gradient, const OptimStep& step) {
  Step current;
  current.gradient = &gradient;
  current.options = step;
  current.optimizer = optimizer_of(step);
  current.ranges = ranges_of(step);
  // The blocks of the norm cross the borders of weight decay.
  current.norm_ranges = join(current.ranges);
  current_ = std::move(current);
  if (step.proximal == 0.0 && !step.on_gradient) {
    next_stage(*current_, Stage::kNorm);
  }
}

void TrainedParameters::next_stage(Step& step, Stage stage) {
  step.stage = stage;
  step.range = 0;
  step.offset = 0;
}

// Returns the next part of `ranges`, and goes on to the part after it.
TrainedParameters::Range TrainedParameters::next_part(const std::vector<Range>& ranges,
                                                      Step& step) {
  const Range& range = ranges[step.range];
  const Range part{range.decays, range.first + step.offset,
                   std::min(kUnitElements, range.count - step.offset)};
  step.offset += part.count;
  if (step.offset == range.count) {
    ++step.range;
    step.offset = 0;
  }
  return part;
}

Status TrainedParameters::run_unit() {
  Step& step = *current_;
  Status status;
  switch (step.stage) {
    case Stage::kGradient: status = prepare_gradient(step); break;
    case Stage::kNorm: status = add_squares(step); break;
    case Stage::kApply: apply_part(step); break;
  }
  if (!status.ok()) {
    current_.reset();
  }
  return status;
}

bool TrainedParameters::cancel_step() {
  const bool changes = current_.has_value() && current_->stage == Stage::kApply;
  while (changes && current_.has_value()) {
    apply_part(*current_);
  }
  current_.reset();
  return changes;
}

// Adds the proximal term to a part of the gradient of one tensor. Shows the gradient to the hook
// once it has all parts.
Status TrainedParameters::prepare_gradient(Step& step) {
  const ParameterSet::Entry& entry = weights_.entries()[step.range];
  const std::int64_t first = step.offset;
  const std::int64_t count = std::min(kUnitElements, entry.size - first);
  if (step.options.proximal > 0.0) {
    const Matrix difference = difference_.reshape(1, count);
    copy_values(weights_.values(entry).slice(first, count), difference.elements(), ops_);
    ops_.add_scaled(row_of(anchor_->values(entry).slice(first, count)), -1.0F, difference);
    ops_.add_scaled(difference, static_cast<float>(step.options.proximal),
                    row_of(step.gradient->values(entry).slice(first, count)));
  }
  if (step.options.on_gradient) {
    step.inspected.resize(static_cast<std::size_t>(entry.size));
    TIDEMILL_RETURN_IF_ERROR(
        ops_.read(step.gradient->values(entry).slice(first, count),
                  std::span(step.inspected)
                      .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
  }
  step.offset += count;
  if (step.offset < entry.size) {
    return {};
  }
  if (step.options.on_gradient) {
    step.options.on_gradient(entry.name, step.inspected);
  }
  step.offset = 0;
  if (++step.range == weights_.entries().size()) {
    step.inspected = {};
    next_stage(step, Stage::kNorm);
  }
  return {};
}

Status TrainedParameters::add_squares(Step& step) {
  if (step.range < step.norm_ranges.size()) {
    const Range part = next_part(step.norm_ranges, step);
    TIDEMILL_ASSIGN_OR_RETURN(
        step.squares,
        ops_.squared_norm(std::as_const(*step.gradient).values().slice(part.first, part.count),
                          step.squares));
  }
  return step.range < step.norm_ranges.size() ? Status{} : begin_apply(step);
}

Status TrainedParameters::begin_apply(Step& step) {
  UpdateReport report;
  report.gradient_norm = std::sqrt(step.squares);
  if (!std::isfinite(report.gradient_norm)) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string name,
                              first_not_finite(*step.gradient, step.options, ops_));
    return {Errc::kInternal, "gradient of tensor " + name + " is not finite"};
  }
  // The second moment holds squares of single elements, in float32.
  constexpr double kMaxNorm = 1e18;
  const double scale = clip_scale(report.gradient_norm, step.optimizer.max_grad_norm);
  if (report.gradient_norm * scale > kMaxNorm) {
    return {Errc::kInvalidArgument,
            "the norm of the gradient is more than 1e18, and AdamW squares gradients in float32"};
  }
  report.optimizer_step = ++step_;
  report.learning_rate = step.options.learning_rate.value_or(
      learning_rate_at(options_.schedule, step_, options_.total_steps));
  step.adamw.learning_rate = report.learning_rate;
  step.adamw.gradient_scale = scale;
  step.adamw.step = step_;
  report_ = report;
  next_stage(step, Stage::kApply);
  if (step.ranges.empty()) {
    current_.reset();
  }
  return {};
}

void TrainedParameters::apply_part(Step& step) {
  const Range part = next_part(step.ranges, step);
  step.adamw.weight_decay = part.decays ? step.optimizer.weight_decay : 0.0;
  ops_.adamw(adamw_factors<float>(step.optimizer.adamw, step.adamw),
             {weights_.values().slice(part.first, part.count),
              std::as_const(*step.gradient).values().slice(part.first, part.count),
              first_moment_.values().slice(part.first, part.count),
              second_moment_.values().slice(part.first, part.count)});
  if (step.range == step.ranges.size()) {
    current_.reset();
  }
}

Status TrainedParameters::load(const TensorMap& tensors) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors_of(weights_, tensors));
  return weights_.load(tensors);
}

TrainedParameters::StateCopy TrainedParameters::start_state(BufferAllocator& allocator) const {
  std::vector<std::pair<const char*, const ParameterSet*>> parts{{kFirstMoment, &first_moment_},
                                                                 {kSecondMoment, &second_moment_}};
  if (published_ != DType::kF32) {
    parts.emplace_back(kWeight, &weights_);
  }
  return {std::move(parts), step_, allocator};
}

TrainedParameters::StateCopy::StateCopy(
    std::vector<std::pair<const char*, const ParameterSet*>> parts, std::int64_t step,
    BufferAllocator& allocator)
    : parts_(std::move(parts)), allocator_(&allocator) {
  Tensor counter;
  counter.dtype = DType::kI64;
  counter.shape = {1};
  counter.data = Buffer::adopt(std::vector<std::int64_t>{step}, DType::kI64);
  state_.emplace(kStep, std::move(counter));
}

Status TrainedParameters::StateCopy::run() {
  const auto& [prefix, values] = parts_[part_];
  const ParameterSet::Entry& entry = values->entries()[entry_];
  if (!tensor_.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(tensor_, values->start_copy(entry, DType::kF32, *allocator_));
  }
  tensor_->run();
  if (tensor_->done()) {
    state_.emplace(prefix + entry.name, tensor_->take());
    tensor_.reset();
    if (++entry_ == values->entries().size()) {
      entry_ = 0;
      ++part_;
    }
  }
  return {};
}

Status TrainedParameters::check(const TensorMap& tensors, const TensorMap& state) const {
  const TensorMap first = without_prefix(state, kFirstMoment);
  const TensorMap second = without_prefix(state, kSecondMoment);
  TIDEMILL_RETURN_IF_ERROR(check_tensors_of(weights_, tensors));
  TIDEMILL_RETURN_IF_ERROR(
      check_tensors_of(first_moment_, first).with_context("optimizer state: first moment"));
  TIDEMILL_RETURN_IF_ERROR(
      check_tensors_of(second_moment_, second).with_context("optimizer state: second moment"));
  TIDEMILL_RETURN_IF_ERROR(step_of(state).status());
  std::size_t expected = first.size() + second.size() + 1;
  if (published_ != DType::kF32) {
    const TensorMap unrounded = without_prefix(state, kWeight);
    TIDEMILL_RETURN_IF_ERROR(
        check_tensors_of(weights_, unrounded).with_context("optimizer state: weights"));
    TIDEMILL_RETURN_IF_ERROR(check_rounded(unrounded, tensors, published_));
    expected += unrounded.size();
  }
  if (state.size() != expected) {
    return invalid_argument("optimizer state: has unexpected tensors");
  }
  return {};
}

Status TrainedParameters::restore(const TensorMap& tensors, const TensorMap& state) {
  const bool rounded = published_ != DType::kF32;
  TIDEMILL_RETURN_IF_ERROR(weights_.load(rounded ? without_prefix(state, kWeight) : tensors));
  TIDEMILL_RETURN_IF_ERROR(first_moment_.load(without_prefix(state, kFirstMoment)));
  TIDEMILL_RETURN_IF_ERROR(second_moment_.load(without_prefix(state, kSecondMoment)));
  TIDEMILL_ASSIGN_OR_RETURN(step_, step_of(state));
  if (anchor_.has_value()) {
    copy_anchor();
  }
  return {};
}

}  // namespace tidemill::engines
