// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/train_view.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.hpp"
#include "base/digest.hpp"
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

}  // namespace

TrainView::TrainView(RuntimeContext& context, WeightCache& weight_cache,
                     const RuntimeOptions& options, const TensorMap& initial,
                     LaidOutWeights weights)
    : context_(context),
      weight_cache_(weight_cache),
      parameters_(trained_shapes(context.config, weight_cache.spec()), *options.optimizer,
                  weight_cache.spec().empty() ? options.compute : DType::kF32, *context.ops),
      gradients_(weight_cache.spec().empty()
                     ? Gradients::for_model(context.config, *context.ops)
                     : Gradients::for_adapter(context.config, weight_cache.spec(), *context.ops)),
      transformer_(context.config, *context.ops),
      activations_(context.config, gradients_.first_layer(), context.ops->memory(),
                   KeepOptions::for_compute(options.compute, options.recompute)),
      row_bytes_(Activations::bytes_per_row(
          context.config, gradients_.first_layer(),
          KeepOptions::for_compute(options.compute, options.recompute), weight_cache.spec())),
      activation_rows_(options.activation_bytes / row_bytes_),
      window_tokens_(options.window_tokens),
      allocator_(options.allocator),
      dhidden_(context.ops->memory()),
      working_(std::move(weights)) {
  if (keeps_generated_rows(options)) {
    generated_.emplace(
        context.config, gradients_.first_layer(),
        KeepOptions::for_compute(options.compute, options.recompute),
        GeneratedRowsOptions{.row_bytes = row_bytes_, .byte_limit = options.generated_bytes},
        *context.ops);
  }
  const Status loaded = parameters_.load(initial);
  TIDEMILL_CHECK(loaded.ok()) << loaded.to_string();  // the same tensors have been laid out
  for (const auto& [name, tensor] : initial) {
    tensor.data.release_pages();  // training works on a copy
  }
}

Status TrainView::begin_batch(TokenLoss* loss, float temperature) {
  TIDEMILL_RETURN_IF_ERROR(check_temperature(temperature));
  end_batch();
  OpenBatch batch;
  batch.loss = loss;
  batch.head = head_options(temperature);
  batch_ = std::move(batch);
  return {};
}

Status TrainView::check(const TrainSequence& sequence) const {
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
  const KvCache& cache = *context_.cache;
  if (cache.pages_for(rows) > cache.num_pages()) {
    return {Errc::kResourceExhausted,
            length + "the cache of " +
                std::to_string(cache.num_pages() * cache.options().page_tokens) + " tokens" +
                sample_text(sequence.id)};
  }
  return {};
}

Status TrainView::add(TrainSequence sequence) {
  const SampleId id = sequence.id;
  if (!batch_.has_value()) {
    return invalid_argument("no batch is open" + sample_text(id));
  }
  TIDEMILL_RETURN_IF_ERROR(check(sequence));
  if (batch_->entries.contains(id)) {
    return invalid_argument("sequence added twice" + sample_text(id));
  }
  const bool started = batch_->stepped.has_value() || batch_->pass != nullptr;
  if (started && id < batch_->entries.rbegin()->first) {
    return invalid_argument("a sequence with a greater id was added before the last step" +
                            sample_text(id));
  }
  batch_->entries.emplace(id, Entry{std::move(sequence), {}, {}});
  return {};
}

bool TrainView::has_work() const {
  return batch_.has_value() && !batch_->entries.empty() &&
         batch_->stepped != batch_->entries.rbegin()->first;
}

std::map<SampleId, TrainView::Entry>::iterator TrainView::next_entry() {
  auto& entries = batch_->entries;
  return batch_->stepped.has_value() ? entries.upper_bound(*batch_->stepped) : entries.begin();
}

// Finds the prompts shared by sequences that were added since the last step. The result must not
// depend on budgets, which decide how far the batch has been stepped.
void TrainView::find_prompts() {
  std::vector<const TrainSequence*> sequences;
  std::vector<Entry*> added;
  for (auto it = next_entry(); it != batch_->entries.end(); ++it) {
    if (!it->second.prompt.has_value()) {
      sequences.push_back(&it->second.sequence);
      added.push_back(&it->second);
    }
  }
  const std::vector<SharedPrompt> prompts = find_shared_prompts(sequences);
  for (std::size_t i = 0; i < added.size(); ++i) {
    added[i]->prompt = prompts[i];
  }
}

bool TrainView::fits(const MicroBatch& micro, const TrainSequence& sequence,
                     const SharedPrompt& prompt, std::int64_t max_rows) const {
  const std::int64_t rows = micro.rows_of(sequence, prompt);
  return rows == 0 || micro.rows() == 0 ||
         micro.rows() + rows <= std::min(max_rows, activation_rows_);
}

HeadOptions TrainView::head_options(float temperature) const noexcept {
  return {temperature, RuntimeContext::chunk_rows(context_.config, window_tokens_)};
}

PassResources TrainView::pass_resources(const HeadOptions& head) {
  return {transformer_, activations_, gradients_, carried_, dhidden_, head, window_tokens_};
}

// Starts the pass of as many sequences as fit. Returns false if not even one fits now, because
// other jobs hold pages of the cache.
bool TrainView::start_pass(std::int64_t max_rows) {
  find_prompts();
  auto pass = std::make_unique<TrainingPass>(context_, pass_resources(batch_->head), working_,
                                             batch_->loss);
  MicroBatch& micro = pass->micro();
  // The first sequence of a batch is always computed, so that metrics can compare the
  // log-probabilities of rollout and training.
  const bool alone = generated_.has_value() && !batch_->checked;
  for (auto it = next_entry(); it != batch_->entries.end(); ++it) {
    const Entry& entry = it->second;
    if (!fits(micro, entry.sequence, *entry.prompt, max_rows) ||
        !micro.add(entry.sequence, *entry.prompt) || (alone && micro.rows() > 0)) {
      break;
    }
  }
  if (micro.empty()) {
    return false;
  }
  const bool may_recall = generated_.has_value() && published_ && batch_->checked;
  if (pass->start(may_recall ? &*generated_ : nullptr)) {
    batch_->num_recalled += micro.rows();
    for (const TrainSequence* sequence : micro.sequences()) {
      batch_->entries.at(sequence->id).recalled = true;
    }
  }
  batch_->checked = batch_->checked || micro.rows() > 0;
  batch_->pass = std::move(pass);
  return true;
}

Result<StepReport> TrainView::step(const StepBudget& budget) {
  StepReport report;
  if (!has_work()) {
    return report;
  }
  if (batch_->pass == nullptr && !start_pass(budget.tokens)) {
    report.more = true;
    report.waits_for_pages = true;
    return report;
  }
  if (Status status = run_units(budget.units, report); !status.ok()) {
    end_batch();
    return status;
  }
  report.more = has_work();
  return report;
}

Status TrainView::run_units(std::int64_t max_units, StepReport& report) {
  TrainingPass& pass = *batch_->pass;
  for (; !pass.done() && report.train_units < max_units; ++report.train_units) {
    TIDEMILL_RETURN_IF_ERROR(pass.run_unit(batch_->sums));
  }
  if (!pass.done()) {
    return {};
  }
  report.train_tokens = pass.micro().rows();
  TIDEMILL_RETURN_IF_ERROR(context_.ops->synchronize());
  end_pass();
  return {};
}

// Takes over the results of a pass that is done.
void TrainView::end_pass() {
  const TrainingPass& pass = *batch_->pass;
  const auto sequences = batch_->pass->micro().sequences();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    batch_->entries.at(sequences[i]->id).logprobs = pass.logprobs()[i];
  }
  batch_->stepped = sequences.back()->id;
  batch_->pass.reset();
}

Result<std::vector<float>> TrainView::logprobs(SampleId id) const {
  if (batch_.has_value()) {
    const auto found = batch_->entries.find(id);
    if (found != batch_->entries.end() && !found->second.logprobs.empty()) {
      return found->second.logprobs;
    }
  }
  return Status(Errc::kNotFound, "not stepped in this batch" + sample_text(id));
}

bool TrainView::recalled(SampleId id) const {
  if (!batch_.has_value()) {
    return false;
  }
  const auto found = batch_->entries.find(id);
  return found != batch_->entries.end() && found->second.recalled;
}

Result<std::vector<std::vector<float>>> TrainView::score(const Snapshot& weights,
                                                         std::span<const TrainSequence> sequences,
                                                         float temperature) {
  TIDEMILL_RETURN_IF_ERROR(check_temperature(temperature));
  if (batch_.has_value() && batch_->pass != nullptr) {
    return Status(Errc::kUnavailable, "a micro-batch is being stepped");
  }
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

Result<UpdateReport> TrainView::update() {
  if (!batch_.has_value()) {
    return invalid_argument("no batch is open");
  }
  if (has_work()) {
    return invalid_argument("the batch has sequences that have not been stepped");
  }
  UpdateReport report;
  if (batch_->loss == nullptr) {
    report.optimizer_step = parameters_.step();
    end_batch();
    return report;
  }
  report.sums = std::move(batch_->sums);
  report.recalled_tokens = batch_->num_recalled;
  auto applied = parameters_.apply(gradients_.collect());
  end_batch();
  if (!applied.ok()) {
    return applied.status();
  }
  report.gradient_norm = applied.value().gradient_norm;
  report.learning_rate = applied.value().learning_rate;
  report.optimizer_step = applied.value().optimizer_step;
  lay_out_working();
  return report;
}

void TrainView::end_batch() {
  if (batch_.has_value() && batch_->loss != nullptr &&
      (batch_->stepped.has_value() || batch_->pass != nullptr)) {
    batch_->pass.reset();
    gradients_.set_zero();
  }
  carried_.num_tokens = 0;
  batch_.reset();
}

// Lays the changed working weights out again. Cannot fail, because tensors of the same shapes have
// been laid out before.
void TrainView::lay_out_working() {
  published_ = false;
  if (trains_adapter()) {
    working_.adapter.reset();  // holding both layouts would double peak memory
    working_.adapter = weight_cache_
                           .lay_out_adapter(parameters_.to_tensors(), *working_.base,
                                            WeightUse::kForwardAndBackward)
                           .value();
  } else {
    working_.base =
        weight_cache_
            .update_base_layout(parameters_.weights(), parameters_.published(),
                                WeightUse::kForwardAndBackward, std::move(working_.base))
            .value();
  }
}

Result<Snapshot> TrainView::commit(PolicyVersion version) {
  TIDEMILL_ASSIGN_OR_RETURN(TensorMap tensors,
                            parameters_.to_tensors(allocator_ != nullptr ? *allocator_ : heap_));
  Snapshot snapshot;
  snapshot.version = version;
  if (trains_adapter()) {
    snapshot.adapter = std::move(tensors);
    snapshot.adapter_digest = digest_tensors(snapshot.adapter);
    snapshot.base_digest = working_.base_digest;
    working_.adapter_digest = snapshot.adapter_digest;
  } else {
    snapshot.base = std::move(tensors);
    snapshot.base_digest = digest_tensors(snapshot.base);
    working_.base_digest = snapshot.base_digest;
  }
  published_ = true;
  weight_cache_.remember(working_, WeightUse::kForwardAndBackward);
  return snapshot;
}

Status TrainView::restore(const Snapshot& snapshot, const TensorMap& optimizer_state) {
  const TensorMap& tensors = trains_adapter() ? snapshot.adapter : snapshot.base;
  if (tensors.empty()) {
    return invalid_argument("snapshot " + to_string(snapshot.version) + " lacks the trained " +
                            (trains_adapter() ? "adapter" : "base"));
  }
  TIDEMILL_ASSIGN_OR_RETURN(LaidOutWeights weights,
                            weight_cache_.lay_out(snapshot, WeightUse::kForwardAndBackward));
  TIDEMILL_RETURN_IF_ERROR(parameters_.restore(tensors, optimizer_state));
  end_batch();
  working_ = std::move(weights);
  published_ = true;
  return {};
}

}  // namespace tidemill::engines
