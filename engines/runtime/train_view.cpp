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

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

// Fails, naming the sequence, if a column is not finite.
Status check_finite(std::span<const TrainSequence* const> sequences,
                    const std::vector<std::vector<float>>& columns, const char* what) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (!all_finite(columns[i])) {
      return {Errc::kInternal, std::string(what) + " not finite" + sample_text(sequences[i]->id)};
    }
  }
  return {};
}

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
    generated_.emplace(context.config, activations_,
                       GeneratedRowsOptions{.row_bytes = row_bytes_,
                                            .workspace_rows = activation_rows_,
                                            .byte_limit = options.generated_bytes},
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
  batch.head = {temperature, RuntimeContext::logit_rows(context_.config)};
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
  if (batch_->stepped.has_value() && id < batch_->entries.rbegin()->first) {
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

Result<StepReport> TrainView::step(const StepBudget& budget) {
  StepReport report;
  if (!has_work()) {
    return report;
  }
  find_prompts();
  Status status;
  {
    MicroBatch micro(context_);
    const bool alone = generated_.has_value() && !batch_->checked;
    for (auto it = next_entry(); it != batch_->entries.end(); ++it) {
      const Entry& entry = it->second;
      if (!fits(micro, entry.sequence, *entry.prompt, budget.tokens) ||
          !micro.add(entry.sequence, *entry.prompt) || (alone && micro.rows() > 0)) {
        break;
      }
    }
    // Generation has freed its pages, and `add` has checked that the sequence fits the whole cache.
    TIDEMILL_CHECK(!micro.empty());
    report.train_tokens = micro.rows();
    status = run(micro);
    // Nothing that operations borrow may change before they have run.
    const Status waited = context_.ops->synchronize();
    status = status.ok() ? waited : status;
    batch_->stepped = micro.sequences().back()->id;
  }
  if (!status.ok()) {
    end_batch();
    return status;
  }
  report.more = has_work();
  return report;
}

// Returns the hidden states of a micro-batch, from kept rows if generation kept all of them. The
// first sequence of a batch is always computed, so that metrics can compare the log-probabilities
// of rollout and training.
ConstMatrix TrainView::forward(MicroBatch& micro) {
  if (generated_.has_value() && published_ && batch_->checked) {
    if (const auto hidden = micro.recall(working_, activations_, *generated_)) {
      batch_->num_recalled += micro.rows();
      for (const TrainSequence* sequence : micro.sequences()) {
        batch_->entries.at(sequence->id).recalled = true;
      }
      return *hidden;
    }
  }
  batch_->checked = true;
  return micro.forward(working_, activations_);
}

Status TrainView::run(MicroBatch& micro) {
  std::vector<float> logprobs(micro.targets().size());
  std::vector<float> entropies(batch_->loss != nullptr ? logprobs.size() : 0);
  ConstMatrix hidden;
  if (micro.rows() > 0) {
    hidden = forward(micro);
    context_.transformer->token_logprobs(*working_.base, working_.adapter.get(), hidden,
                                         micro.targets(), batch_->head, logprobs, entropies);
  }
  const auto columns = micro.to_columns(logprobs);
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro.sequences(), columns, "log-probability"));
  if (batch_->loss != nullptr) {
    TIDEMILL_RETURN_IF_ERROR(run_loss(micro, hidden, columns, entropies));
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    batch_->entries.at(micro.sequences()[i]->id).logprobs = columns[i];
  }
  return {};
}

Status TrainView::run_loss(MicroBatch& micro, ConstMatrix hidden,
                           const std::vector<std::vector<float>>& logprobs,
                           std::span<const float> entropies) {
  const auto entropy_columns = micro.to_columns(entropies);
  std::vector<std::vector<float>> dlogprobs;
  std::vector<std::vector<float>> dentropies;
  for (const auto& column : logprobs) {
    dlogprobs.emplace_back(column.size());
    dentropies.emplace_back(column.size());
  }
  std::vector<LossRow> rows;
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    rows.push_back(
        {micro.sequences()[i], logprobs[i], entropy_columns[i], dlogprobs[i], dentropies[i]});
  }
  TIDEMILL_RETURN_IF_ERROR(batch_->loss->evaluate(rows, batch_->sums));
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro.sequences(), dlogprobs, "gradient of the loss"));
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro.sequences(), dentropies, "gradient of the loss"));
  if (micro.rows() == 0) {
    return {};
  }
  // Always passes entropy gradients, even if zero: a decision per micro-batch could change bits.
  const std::vector<float> row_dlogprobs = micro.to_rows(dlogprobs);
  const std::vector<float> row_dentropies = micro.to_rows(dentropies);
  const Matrix dhidden = dhidden_.reshape(hidden.rows, hidden.cols);
  context_.transformer->token_logprobs_backward(
      *working_.base, working_.adapter.get(), hidden, micro.targets(), batch_->head,
      {row_dlogprobs, row_dentropies, true}, dhidden, gradients_);
  context_.transformer->backward(*working_.base, micro.batch(), *context_.cache, activations_,
                                 dhidden, gradients_, {window_tokens_, &carried_});
  return {};
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

Status TrainView::score_micro(MicroBatch& micro, const LaidOutWeights& weights,
                              const HeadOptions& head, std::vector<std::vector<float>>& columns) {
  std::vector<float> logprobs(micro.targets().size());
  if (micro.rows() > 0) {
    const ConstMatrix hidden = micro.forward(weights, activations_);
    context_.transformer->token_logprobs(*weights.base, weights.adapter.get(), hidden,
                                         micro.targets(), head, logprobs, {});
  }
  auto added = micro.to_columns(logprobs);
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro.sequences(), added, "log-probability"));
  columns.insert(columns.end(), std::make_move_iterator(added.begin()),
                 std::make_move_iterator(added.end()));
  return {};
}

Result<std::vector<std::vector<float>>> TrainView::score(const Snapshot& weights,
                                                         std::span<const TrainSequence> sequences,
                                                         float temperature) {
  TIDEMILL_RETURN_IF_ERROR(check_temperature(temperature));
  for (const TrainSequence& sequence : sequences) {
    TIDEMILL_RETURN_IF_ERROR(check(sequence));
  }
  LaidOutWeights laid_out = working_;
  if (!published_ || weights.base_digest != working_.base_digest ||
      weights.adapter_digest != working_.adapter_digest) {
    TIDEMILL_ASSIGN_OR_RETURN(laid_out, weight_cache_.lay_out(weights, WeightUse::kForward));
  }
  const HeadOptions head{temperature, RuntimeContext::logit_rows(context_.config)};
  std::vector<const TrainSequence*> pointers;
  for (const TrainSequence& sequence : sequences) {
    pointers.push_back(&sequence);
  }
  const std::vector<SharedPrompt> prompts = find_shared_prompts(pointers);
  std::vector<std::vector<float>> columns;
  while (columns.size() < sequences.size()) {
    MicroBatch micro(context_);
    for (std::size_t i = columns.size(); i < sequences.size(); ++i) {
      if (!fits(micro, sequences[i], prompts[i], StepBudget{}.tokens) ||
          !micro.add(sequences[i], prompts[i])) {
        break;
      }
    }
    TIDEMILL_CHECK(!micro.empty());
    TIDEMILL_RETURN_IF_ERROR(score_micro(micro, laid_out, head, columns));
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
  if (batch_.has_value() && batch_->loss != nullptr && batch_->stepped.has_value()) {
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
