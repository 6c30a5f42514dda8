// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/runtime_job.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "engines/runtime/reservation.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {
namespace {

Status check_temperature(float temperature) {
  if (!std::isfinite(temperature) || temperature < kMinTemperature) {
    return invalid_argument("temperature: " + std::to_string(temperature) +
                            " must be finite and at least 0.001");
  }
  return {};
}

Status check_columns(const TrainSequence& sequence) {
  const std::size_t length = sequence.ids.size();
  if (length == 0) {
    return invalid_argument("empty sequence" + sample_text(sequence.id));
  }
  if (sequence.response_mask.size() != length) {
    return invalid_argument("response_mask has " + std::to_string(sequence.response_mask.size()) +
                            " entries for " + std::to_string(length) + " tokens" +
                            sample_text(sequence.id));
  }
  for (const auto& [name, column] : {std::pair("advantages", &sequence.advantages),
                                     std::pair("behavior_logprobs", &sequence.behavior_logprobs),
                                     std::pair("proximal_logprobs", &sequence.proximal_logprobs),
                                     std::pair("reference_logprobs", &sequence.reference_logprobs),
                                     std::pair("token_weights", &sequence.token_weights)}) {
    if (!column->empty() && column->size() != length) {
      return invalid_argument(std::string(name) + " has " + std::to_string(column->size()) +
                              " entries for " + std::to_string(length) + " tokens" +
                              sample_text(sequence.id));
    }
  }
  return {};
}

TensorShapes trained_shapes(const ModelConfig& config, const AdapterSpec& spec) {
  return spec.empty() ? expected_tensors(config) : adapter_shapes(spec);
}

// Parts of `UnitKind` in addition to the values of `RuntimeJob::Work`.
constexpr std::uint8_t kGatherPart = 16;
constexpr std::uint8_t kReadPart = 32;
constexpr std::uint8_t kLayOutPart = 33;

}  // namespace

Result<std::unique_ptr<RuntimeJob>> RuntimeJob::create(Parts parts, const RuntimeOptions& options,
                                                       const TensorMap& initial,
                                                       LaidOutWeights weights) {
  const ModelConfig& config = parts.context.config;
  const AdapterSpec& spec = parts.weight_cache.spec();
  Ops& ops = *parts.context.ops;
  auto parameters = TrainedParameters::create(trained_shapes(config, spec), *options.optimizer,
                                              spec.empty() ? options.compute : DType::kF32, ops);
  if (!parameters.ok()) {
    return parameters.status().with_context("memory of the trained parameters and their moments");
  }
  auto gradients =
      spec.empty() ? Gradients::for_model(config, ops) : Gradients::for_adapter(config, spec, ops);
  if (!gradients.ok()) {
    return gradients.status().with_context("memory of the gradients");
  }
  std::unique_ptr<RuntimeJob> job(new RuntimeJob(std::move(parts), options,
                                                 std::move(parameters).value(),
                                                 std::move(gradients).value(), std::move(weights)));
  if (job->activation_rows_ < 1) {
    return invalid_argument("activation_bytes: " + std::to_string(options.activation_bytes) +
                            " holds no token, which takes " + std::to_string(job->row_bytes_));
  }
  TIDEMILL_RETURN_IF_ERROR(job->reserve(options));
  const Status loaded = job->parameters_.load(initial);
  TIDEMILL_CHECK(loaded.ok()) << loaded.to_string();  // the same tensors have been laid out
  for (const auto& [name, tensor] : initial) {
    tensor.data.release_pages();  // training works on a copy
  }
  return job;
}

RuntimeJob::RuntimeJob(Parts parts, const RuntimeOptions& options, TrainedParameters parameters,
                       Gradients gradients, LaidOutWeights weights)
    : context_(parts.context),
      own_cache_(std::move(parts.own_cache)),
      weight_cache_(parts.weight_cache),
      reserved_(std::move(parts.reserved)),
      parameters_(std::move(parameters)),
      gradients_(std::move(gradients)),
      transformer_(context_.config, *context_.ops),
      activations_(context_.config, gradients_.first_layer(), context_.ops->memory(),
                   KeepOptions::for_compute(options.compute, options.recompute)),
      row_bytes_(Activations::bytes_per_row(
          context_.config, gradients_.first_layer(),
          KeepOptions::for_compute(options.compute, options.recompute), weight_cache_.spec())),
      activation_rows_(max_train_rows(options, row_bytes_)),
      sequence_rows_(max_sequence_rows(context_.config, options)),
      window_tokens_(options.window_tokens),
      allocator_(options.allocator),
      dhidden_(context_.ops->memory()),
      working_(std::move(weights)) {
  if (keeps_generated_rows(options)) {
    generated_.emplace(
        context_.config, gradients_.first_layer(),
        KeepOptions::for_compute(options.compute, options.recompute),
        GeneratedRowsOptions{.row_bytes = row_bytes_, .byte_limit = options.generated_bytes},
        *context_.ops);
  }
}

// Reserves the memory of the largest pass.
Status RuntimeJob::reserve(const RuntimeOptions& options) {
  const ModelConfig& config = context_.config;
  const RowLimits& limits = options.limits;
  const PassLimits pass =
      training_limits(config, options, row_bytes_,
                      reserved_ != nullptr ? reserved_->tokens() : context_.cache_tokens());
  const auto reserved = [&](const Status& status) {
    return status.with_context("memory to train " + std::to_string(pass.rows) +
                               " tokens at a time");
  };
  TIDEMILL_RETURN_IF_ERROR(reserved(activations_.reserve(pass.rows, weight_cache_.spec())));
  TIDEMILL_RETURN_IF_ERROR(reserved(transformer_.reserve(pass)));
  TIDEMILL_RETURN_IF_ERROR(reserved(dhidden_.reserve(pass.rows, config.hidden_size)));
  TIDEMILL_RETURN_IF_ERROR(reserved(context_.ops->scratch().reserve(
      scratch_bytes(weight_cache_.spec(), {pass.layer_rows, pass.chunk_rows}))));
  if (limits.prompt_rows > 0) {
    prompt_rows_ = limits.prompt_rows;
    TIDEMILL_RETURN_IF_ERROR(
        reserved(carried_.reserve(config, prompt_rows_, context_.ops->memory())));
  }
  if (generated_.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(generated_->reserve(limits.rollout_rows, weight_cache_.spec())
                                 .with_context("memory to keep generated rows"));
  }
  return {};
}

// Reserves the memory of the gradients of shared prompts that are longer than those before.
Status RuntimeJob::reserve_prompts(std::span<const SharedPrompt> prompts) {
  std::int64_t longest = 0;
  for (const SharedPrompt& prompt : prompts) {
    longest = std::max(longest, prompt.num_tokens);
  }
  if (longest <= prompt_rows_) {
    return {};
  }
  prompt_rows_ = 0;
  TIDEMILL_RETURN_IF_ERROR(
      carried_.reserve(context_.config, longest, context_.ops->memory())
          .with_context("memory of a shared prompt of " + std::to_string(longest) + " tokens"));
  prompt_rows_ = longest;
  return {};
}

RuntimeJob::~RuntimeJob() {
  cancel();
}

Status RuntimeJob::check_idle() const {
  return has_work() ? Status(Errc::kUnavailable, "the training job has work") : Status{};
}

// Returns how many positions a micro-batch may have in the cache.
std::int64_t RuntimeJob::cache_tokens() const noexcept {
  const KvCache& cache = *context_.cache;
  return reserved_ != nullptr ? reserved_->tokens()
                              : cache.num_shared_pages() * cache.options().page_tokens;
}

Status RuntimeJob::check(const TrainSequence& sequence) const {
  TIDEMILL_RETURN_IF_ERROR(check_columns(sequence));
  for (const std::int32_t token : sequence.ids) {
    if (token < 0 || token >= context_.config.vocab_size) {
      return invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                              std::to_string(context_.config.vocab_size) +
                              sample_text(sequence.id));
    }
  }
  const std::string length = std::to_string(sequence.ids.size()) + " tokens exceed ";
  if (static_cast<std::int64_t>(sequence.ids.size()) > context_.config.max_positions) {
    return {Errc::kResourceExhausted, length + "the context of " +
                                          std::to_string(context_.config.max_positions) +
                                          sample_text(sequence.id)};
  }
  const std::int64_t rows = num_rows(sequence);
  if (rows > activation_rows_) {
    return {Errc::kResourceExhausted, length + "the activation budget of " +
                                          std::to_string(activation_rows_) + " rows" +
                                          sample_text(sequence.id)};
  }
  if (rows > sequence_rows_) {
    return {Errc::kResourceExhausted,
            length + "the longest sequence that memory is reserved for, " +
                std::to_string(sequence_rows_) + " rows" + sample_text(sequence.id)};
  }
  if (rows > cache_tokens()) {
    return {Errc::kResourceExhausted,
            length + (reserved_ != nullptr ? "the reservation of " : "the cache of ") +
                std::to_string(cache_tokens()) + " tokens" + sample_text(sequence.id)};
  }
  return {};
}

Status RuntimeJob::forward(TrainBatch batch) {
  return begin_batch(std::move(batch), nullptr);
}

Status RuntimeJob::forward_backward(TrainBatch batch, TokenLoss& loss) {
  return begin_batch(std::move(batch), &loss);
}

Status RuntimeJob::begin_batch(TrainBatch batch, TokenLoss* loss) {
  TIDEMILL_RETURN_IF_ERROR(check_idle());
  TIDEMILL_RETURN_IF_ERROR(check_temperature(batch.temperature));
  Batch begun;
  begun.loss = loss;
  begun.head = head_options(batch.temperature);
  for (TrainSequence& sequence : batch.sequences) {
    TIDEMILL_RETURN_IF_ERROR(check(sequence));
    const SampleId id = sequence.id;
    if (!begun.entries.try_emplace(id, Entry{std::move(sequence), {}, {}}).second) {
      return invalid_argument("two sequences have the same id" + sample_text(id));
    }
  }
  std::vector<const TrainSequence*> sequences;
  std::int64_t longest = 0;
  for (const auto& [id, entry] : begun.entries) {
    sequences.push_back(&entry.sequence);
    longest = std::max(longest, num_rows(entry.sequence));
  }
  const std::vector<SharedPrompt> prompts = find_shared_prompts(sequences);
  if (loss != nullptr) {
    TIDEMILL_RETURN_IF_ERROR(reserve_prompts(prompts));
  }
  auto prompt = prompts.begin();
  for (auto& [id, entry] : begun.entries) {
    entry.prompt = *prompt++;
  }
  if (reserved_ == nullptr) {
    begun.need = std::make_unique<PageNeed>(context_, context_.cache->pages_for(longest));
  }
  batch_ = std::move(begun);  // the nodes of the map stay where they are
  batch_->next = batch_->entries.begin();
  if (batch_->entries.empty()) {
    end_batch();
  } else {
    work_ = Work::kBatch;
  }
  has_gradients_ = has_gradients_ || (loss != nullptr && !batch_->entries.empty());
  return {};
}

bool RuntimeJob::fits(const MicroBatch& micro, const TrainSequence& sequence,
                      const SharedPrompt& prompt, std::int64_t max_rows) const {
  const std::int64_t rows = micro.rows_of(sequence, prompt);
  return rows == 0 || micro.rows() == 0 ||
         micro.rows() + rows <= std::min(max_rows, activation_rows_);
}

HeadOptions RuntimeJob::head_options(float temperature) const noexcept {
  return RuntimeContext::head_options(context_.config, temperature, window_tokens_,
                                      context_.ops->traits());
}

PassResources RuntimeJob::pass_resources(const HeadOptions& head) {
  return {transformer_, activations_, gradients_,     carried_,
          dhidden_,     head,         window_tokens_, reserved_.get()};
}

// Starts the pass of as many sequences as fit. Returns false if not even one fits now, because
// other jobs hold pages of the cache.
bool RuntimeJob::start_pass(std::int64_t max_rows) {
  auto pass = std::make_unique<TrainingPass>(context_, pass_resources(batch_->head), working_,
                                             batch_->loss);
  MicroBatch& micro = pass->micro();
  // The first sequence of a batch is always computed, so that metrics can compare the
  // log-probabilities of rollout and training.
  const bool alone = generated_.has_value() && !batch_->checked;
  for (auto it = batch_->next; it != batch_->entries.end(); ++it) {
    const Entry& entry = it->second;
    if (!fits(micro, entry.sequence, entry.prompt, max_rows) ||
        !micro.add(entry.sequence, entry.prompt) || (alone && micro.rows() > 0)) {
      break;
    }
  }
  if (micro.empty()) {
    return false;
  }
  const bool may_recall = generated_.has_value() && published_ && batch_->checked;
  if (pass->start(may_recall ? &*generated_ : nullptr)) {
    num_recalled_ += batch_->loss != nullptr ? micro.rows() : 0;
    for (const TrainSequence* sequence : micro.sequences()) {
      batch_->entries.at(sequence->id).recalled = true;
    }
  }
  batch_->checked = batch_->checked || micro.rows() > 0;
  batch_->pass = std::move(pass);
  return true;
}

Result<StepReport> RuntimeJob::advance(const StepBudget& budget) {
  StepReport report;
  Status status;
  while (has_work() && status.ok() && report.train_units < budget.units) {
    if (work_ == Work::kBatch && !laying_out_.has_value()) {
      status = advance_batch(budget, report);
      break;
    }
    status = run_unit();
    ++report.train_units;
  }
  if (!status.ok()) {
    cancel();
    return status;
  }
  report.more = has_work();
  return report;
}

UnitKind RuntimeJob::next_unit() const {
  if (laying_out_.has_value()) {
    return {UnitStage::kWeights, laying_out_->adapter.has_value() ? kLayOutPart : kReadPart, 0, 0};
  }
  if (work_ == Work::kBatch) {
    return batch_->pass != nullptr ? batch_->pass->next() : UnitKind{UnitStage::kForward, 0, 0, 0};
  }
  const bool optimizes = work_ == Work::kOptimStep || work_ == Work::kZero;
  return {
      optimizes ? UnitStage::kOptimizer : UnitStage::kWeights,
      static_cast<std::uint8_t>(static_cast<int>(work_) + (step_.has_value() ? kGatherPart : 0)), 0,
      0};
}

// Runs units of the current micro-batch, and not beyond its end.
Status RuntimeJob::advance_batch(const StepBudget& budget, StepReport& report) {
  if (batch_->pass == nullptr && !start_pass(budget.tokens)) {
    report.waits_for_pages = true;
    return {};
  }
  TrainingPass& pass = *batch_->pass;
  for (; !pass.done() && report.train_units < budget.units; ++report.train_units) {
    TIDEMILL_RETURN_IF_ERROR(pass.run_unit(sums_));
  }
  if (pass.done()) {
    TIDEMILL_RETURN_IF_ERROR(context_.ops->synchronize());
    end_pass(report);
  }
  return {};
}

// Takes over the results of a pass that is done.
void RuntimeJob::end_pass(StepReport& report) {
  TrainingPass& pass = *batch_->pass;
  report.train_tokens = pass.micro().rows();
  const auto sequences = pass.micro().sequences();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    batch_->entries.at(sequences[i]->id).logprobs = pass.logprobs()[i];
  }
  batch_->next = batch_->entries.upper_bound(sequences.back()->id);
  batch_->pass.reset();
  if (batch_->next == batch_->entries.end()) {
    end_batch();
  }
}

void RuntimeJob::end_batch() {
  batch_->need.reset();
  work_ = Work::kNone;
}

Status RuntimeJob::run_unit() {
  if (laying_out_.has_value()) {
    return lay_out_next();
  }
  switch (work_) {
    case Work::kOptimStep: return run_optimizer_unit();
    case Work::kZero: zero_next(); break;
    case Work::kSave: return save_next();
    case Work::kCapture: return capture_next();
    case Work::kLayout:
    case Work::kBatch:
    case Work::kNone: break;
  }
  return {};
}

Result<std::vector<float>> RuntimeJob::logprobs(SampleId id) const {
  if (batch_.has_value()) {
    const auto found = batch_->entries.find(id);
    if (found != batch_->entries.end() && !found->second.logprobs.empty()) {
      return found->second.logprobs;
    }
  }
  return Status(Errc::kNotFound, "not computed in the last batch" + sample_text(id));
}

bool RuntimeJob::recalled(SampleId id) const {
  if (!batch_.has_value()) {
    return false;
  }
  const auto found = batch_->entries.find(id);
  return found != batch_->entries.end() && found->second.recalled;
}

Result<std::vector<std::vector<float>>> RuntimeJob::score(const Snapshot& weights,
                                                          std::span<const TrainSequence> sequences,
                                                          float temperature) {
  TIDEMILL_RETURN_IF_ERROR(check_temperature(temperature));
  TIDEMILL_RETURN_IF_ERROR(check_idle());
  for (const TrainSequence& sequence : sequences) {
    TIDEMILL_RETURN_IF_ERROR(check(sequence));
  }
  LaidOutWeights laid_out = working_;
  if (!published_ || weights.base_digest != working_.base_digest ||
      weights.adapter_digest != working_.adapter_digest) {
    TIDEMILL_ASSIGN_OR_RETURN(laid_out, weight_cache_.lay_out(weights, WeightUse::kForward));
  }
  std::vector<const TrainSequence*> pointers;
  for (const TrainSequence& sequence : sequences) {
    pointers.push_back(&sequence);
  }
  const std::vector<SharedPrompt> prompts = find_shared_prompts(pointers);
  std::vector<std::vector<float>> columns;
  while (columns.size() < sequences.size()) {
    TrainingPass pass(context_, pass_resources(head_options(temperature)), laid_out, nullptr);
    for (std::size_t i = columns.size(); i < sequences.size(); ++i) {
      if (!fits(pass.micro(), sequences[i], prompts[i], StepBudget{}.tokens) ||
          !pass.micro().add(sequences[i], prompts[i])) {
        break;
      }
    }
    if (pass.micro().empty()) {
      return Status(Errc::kUnavailable, "other jobs hold the pages of the cache");
    }
    pass.start(nullptr);
    for (LossSums sums; !pass.done();) {
      TIDEMILL_RETURN_IF_ERROR(pass.run_unit(sums));
    }
    columns.insert(columns.end(), pass.logprobs().begin(), pass.logprobs().end());
  }
  return columns;
}

Status RuntimeJob::optim_step(const OptimStep& step) {
  TIDEMILL_RETURN_IF_ERROR(check_idle());
  if (!has_gradients_) {
    return invalid_argument("there are no gradients for an optimizer step");
  }
  TIDEMILL_RETURN_IF_ERROR(parameters_.check_step(step));
  step_ = step;
  work_ = Work::kOptimStep;
  return {};
}

Status RuntimeJob::run_optimizer_unit() {
  if (step_.has_value()) {
    if (gradient_units_ == nullptr) {
      gradient_units_ = gradients_.start_collect();
    }
    if (!gradient_units_->done()) {
      gradient_units_->run();
    }
    if (gradient_units_->done()) {
      gradient_units_.reset();
      parameters_.begin_step(gradients_.sums(), *step_);
      step_.reset();
    }
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(parameters_.run_unit());
  if (!parameters_.stepping()) {
    report_update();
    gradient_units_ = gradients_.start_zero();
    work_ = Work::kZero;
  }
  return {};
}

// Takes over the report of the step that is complete.
void RuntimeJob::report_update() {
  last_update_ = parameters_.last_update();
  last_update_.sums = std::move(sums_);
  last_update_.recalled_tokens = num_recalled_;
}

// Sets a part of the gradients to zero after the optimizer step that used them.
void RuntimeJob::zero_next() {
  gradient_units_->run();
  if (gradient_units_->done()) {
    gradient_units_.reset();
    has_gradients_ = false;
    drop_gradients();
    batch_.reset();
    begin_layout();
    work_ = Work::kLayout;
  }
}

// Starts to lay the changed working weights out again.
void RuntimeJob::begin_layout() {
  published_ = false;
  laying_out_ = LayingOut();
  if (trains_adapter()) {
    working_.adapter.reset();  // holding both layouts would double peak memory
  } else {
    laying_out_->base =
        weight_cache_.start_base_layout(parameters_.weights(), parameters_.published(),
                                        WeightUse::kForwardAndBackward, std::move(working_.base));
  }
}

// Reads or prepares the next part. A part that failed is the next one again, whenever that is.
Status RuntimeJob::lay_out_next() {
  LayingOut& layout = *laying_out_;
  if (layout.base.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(layout.base->run());
    if (!layout.base->done()) {
      return {};
    }
    working_.base = layout.base->take();
  } else if (!layout.adapter.has_value() && layout.next < parameters_.weights().entries().size()) {
    return read_next(layout);
  } else {
    TIDEMILL_RETURN_IF_ERROR(lay_out_adapter(layout));
    if (!layout.adapter->done()) {
      return {};
    }
    working_.adapter = layout.adapter->take();
  }
  laying_out_.reset();
  if (work_ == Work::kLayout) {
    work_ = Work::kNone;
  }
  return {};
}

// Reads the next part of a tensor of the adapter.
Status RuntimeJob::read_next(LayingOut& layout) {
  const ParameterSet::Entry& entry = parameters_.weights().entries()[layout.next];
  if (!layout.entry.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(
        layout.entry, parameters_.weights().start_copy(entry, parameters_.published(), heap_));
  }
  layout.entry->run();
  if (layout.entry->done()) {
    layout.tensors[entry.name] = layout.entry->take();
    layout.entry.reset();
    ++layout.next;
  }
  return {};
}

// Prepares the next module of the adapter.
Status RuntimeJob::lay_out_adapter(LayingOut& layout) {
  if (!layout.adapter.has_value()) {
    layout.next = 0;  // a layout that fails to start reads the tensors again
    TIDEMILL_ASSIGN_OR_RETURN(layout.adapter, weight_cache_.start_adapter_layout(
                                                  std::exchange(layout.tensors, {}), *working_.base,
                                                  WeightUse::kForwardAndBackward));
  }
  return layout.adapter->run();
}

void RuntimeJob::drop_gradients() {
  if (has_gradients_) {
    gradients_.set_zero();
  }
  has_gradients_ = false;
  sums_.clear();
  num_recalled_ = 0;
  carried_.num_tokens = 0;
}

void RuntimeJob::cancel() {
  const bool completed = work_ == Work::kOptimStep && parameters_.cancel_step();
  if (completed) {
    report_update();
  }
  if (completed || work_ == Work::kZero) {
    begin_layout();
  }
  step_.reset();
  gradient_units_.reset();
  batch_.reset();
  saving_.reset();
  capturing_.reset();
  drop_gradients();
  work_ = Work::kNone;
}

Status RuntimeJob::save(PolicyVersion version) {
  TIDEMILL_RETURN_IF_ERROR(check_idle());
  saved_.reset();
  saving_.emplace(parameters_.weights().entries().size());
  saving_->snapshot.version = version;
  work_ = Work::kSave;
  return {};
}

// Reads and digests the next part of a tensor.
Status RuntimeJob::save_next() {
  const auto& entries = parameters_.weights().entries();
  const ParameterSet::Entry& entry = entries[saving_->next];
  std::optional<ParameterSet::Copy>& tensor = saving_->tensor;
  if (!tensor.has_value()) {
    const DType dtype = parameters_.published();
    TIDEMILL_ASSIGN_OR_RETURN(
        tensor, parameters_.weights().start_copy(entry, dtype,
                                                 allocator_ != nullptr ? *allocator_ : heap_));
    saving_->hasher.begin(entry.name, dtype, entry.shape, tensor->size_bytes());
  }
  saving_->hasher.append(tensor->run());
  if (!tensor->all_finite()) {
    return {Errc::kInternal, "the weights of tensor " + entry.name + " are not finite"};
  }
  if (!tensor->done()) {
    return {};
  }
  saving_->tensors.emplace(entry.name, tensor->take());
  tensor.reset();
  if (++saving_->next == entries.size()) {
    finish_save();
  }
  return {};
}

void RuntimeJob::finish_save() {
  Snapshot& snapshot = saving_->snapshot;
  if (trains_adapter()) {
    snapshot.adapter = std::move(saving_->tensors);
    snapshot.adapter_digest = saving_->hasher.digest();
    snapshot.base_digest = working_.base_digest;
    working_.adapter_digest = snapshot.adapter_digest;
  } else {
    snapshot.base = std::move(saving_->tensors);
    snapshot.base_digest = saving_->hasher.digest();
    working_.base_digest = snapshot.base_digest;
  }
  published_ = true;
  weight_cache_.remember(working_, WeightUse::kForwardAndBackward);
  saved_ = std::move(snapshot);
  saving_.reset();
  work_ = Work::kNone;
}

Snapshot RuntimeJob::take_snapshot() {
  TIDEMILL_CHECK(saved_.has_value()) << "there is no snapshot to take";
  return *std::exchange(saved_, std::nullopt);
}

TensorMap RuntimeJob::take_optimizer_state() {
  TIDEMILL_CHECK(captured_.has_value()) << "there is no optimizer state to take";
  return *std::exchange(captured_, std::nullopt);
}

Status RuntimeJob::capture() {
  TIDEMILL_RETURN_IF_ERROR(check_idle());
  captured_.reset();
  capturing_ = parameters_.start_state(heap_);
  work_ = Work::kCapture;
  return {};
}

// Copies the next part of the optimizer state.
Status RuntimeJob::capture_next() {
  TIDEMILL_RETURN_IF_ERROR(capturing_->run());
  if (capturing_->done()) {
    captured_ = capturing_->take();
    capturing_.reset();
    work_ = Work::kNone;
  }
  return {};
}

Status RuntimeJob::load(const Snapshot& snapshot, const TensorMap& optimizer_state) {
  const TensorMap& tensors = trains_adapter() ? snapshot.adapter : snapshot.base;
  if (tensors.empty()) {
    return invalid_argument("snapshot " + to_string(snapshot.version) + " lacks the trained " +
                            (trains_adapter() ? "adapter" : "base"));
  }
  TIDEMILL_ASSIGN_OR_RETURN(LaidOutWeights weights,
                            weight_cache_.lay_out(snapshot, WeightUse::kForwardAndBackward));
  TIDEMILL_RETURN_IF_ERROR(parameters_.check(tensors, optimizer_state));
  cancel();
  TIDEMILL_RETURN_IF_ERROR(parameters_.restore(tensors, optimizer_state));
  laying_out_.reset();
  working_ = std::move(weights);
  published_ = true;
  return {};
}

}  // namespace tidemill::engines
