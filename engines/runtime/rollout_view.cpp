// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/rollout_view.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

std::string sample(SampleId id) {
  return " sample_id=" + std::to_string(id.value);
}

Status check_ids(const std::vector<std::int32_t>& ids, const char* what, std::int64_t vocabulary,
                 SampleId id) {
  for (const std::int32_t token : ids) {
    if (token < 0 || token >= vocabulary) {
      return invalid_argument(std::string(what) + ": token " + std::to_string(token) +
                              " is outside the vocabulary of " + std::to_string(vocabulary) +
                              sample(id));
    }
  }
  return {};
}

// Puts chunks of one adapter behind each other, in the order in which adapters first appear: few
// large products in place of many small ones. No bit of a row depends on its place.
void put_adapters_together(std::vector<RolloutChunk>& chunks) {
  std::map<const ServedAdapter*, std::size_t> places;
  for (const RolloutChunk& chunk : chunks) {
    places.emplace(chunk.sequence->adapter.get(), places.size());
  }
  if (places.size() > 1) {
    std::ranges::stable_sort(chunks, {}, [&places](const RolloutChunk& chunk) {
      return places.at(chunk.sequence->adapter.get());
    });
  }
}

// Appends the names of a chunk's rows.
void append_names(const RolloutChunk& chunk, std::vector<std::optional<DigestKey>>& names) {
  RolloutSequence& sequence = *chunk.sequence;
  if (sequence.chain.length() != sequence.num_cached || sequence.num_cached == 0) {
    sequence.chain = TokenChain(sequence.weights);
    for (std::int64_t i = 0; i < sequence.num_cached; ++i) {
      sequence.chain.append(sequence.tokens[static_cast<std::size_t>(i)]);
    }
  }
  for (std::int64_t i = 0; i < chunk.num_tokens; ++i) {
    names.emplace_back(
        sequence.chain.append(sequence.tokens[static_cast<std::size_t>(sequence.num_cached + i)]));
  }
}

// Adds one token to the versions that produced a response.
void count_version(std::vector<VersionSpan>& spans, PolicyVersion version) {
  if (spans.empty() || spans.back().version != version) {
    spans.push_back({version, 0});
  }
  ++spans.back().num_tokens;
}

}  // namespace

RolloutView::RolloutView(Device& device, WeightShelf& shelf, const RuntimeOptions& options,
                         LaidOutWeights weights, PolicyVersion version)
    : device_(device),
      shelf_(shelf),
      token_text_(options.token_text),
      share_prefixes_(options.share_prefixes),
      queue_(device.cache->pool(), {.page_tokens = device.cache->options().page_tokens,
                                    .max_running = options.max_running}),
      drawer_(device),
      clock_(options.clock),
      weights_(std::move(weights)),
      weights_name_(weights_name(weights_)),
      version_(version),
      adapters_(device.config, *device.ops, options.adapter_bytes) {
  adapters_.set_base(weights_.base, base_name(weights_));
  device.make_room = [this](std::int64_t pages, RoomFrom from) {
    if (from == RoomFrom::kCached) {
      queue_.planner().drop_cached(pages);
    } else {
      preempted_between_ += queue_.planner().make_room(pages);
    }
  };
}

Status RolloutView::check(const RolloutRequest& request) const {
  const std::int64_t vocabulary = device_.config.vocab_size;
  const SampleId id = request.id;
  if (request.prompt_ids.empty()) {
    return invalid_argument("empty prompt" + sample(id));
  }
  if (queue_.contains(id)) {
    return invalid_argument("already queued" + sample(id));
  }
  if (request.max_new_tokens < 0) {
    return invalid_argument("max_new_tokens: " + std::to_string(request.max_new_tokens) +
                            " is negative" + sample(id));
  }
  if (request.time_limit < Duration::zero()) {
    return invalid_argument("time_limit: is negative" + sample(id));
  }
  if (request.time_limit > Duration::zero() && clock_ == nullptr) {
    return invalid_argument("time_limit: this runtime has no clock" + sample(id));
  }
  TIDEMILL_RETURN_IF_ERROR(check_ids(request.prompt_ids, "prompt_ids", vocabulary, id));
  TIDEMILL_RETURN_IF_ERROR(check_ids(request.stop_ids, "stop_ids", vocabulary, id));
  if (const Status status = validate(request.sampling, vocabulary); !status.ok()) {
    return {status.code(), status.message() + sample(id)};
  }
  if (!request.stop_strings.empty() && !token_text_) {
    return invalid_argument("stop_strings need the text of tokens, which this runtime lacks" +
                            sample(id));
  }
  const auto prompt = static_cast<std::int64_t>(request.prompt_ids.size());
  const std::string tokens = std::to_string(prompt) + " prompt tokens and " +
                             std::to_string(request.max_new_tokens) + " new ones";
  if (prompt + request.max_new_tokens > device_.config.max_positions) {
    return {Errc::kResourceExhausted, tokens + " exceed the context of " +
                                          std::to_string(device_.config.max_positions) +
                                          sample(id)};
  }
  const KvCache& cache = *device_.cache;
  if (cache.pages_for(most_cached_tokens(request)) > cache.num_pages()) {
    return {Errc::kResourceExhausted,
            tokens + " exceed the cache of " +
                std::to_string(cache.num_pages() * cache.options().page_tokens) + " tokens" +
                sample(id)};
  }
  return {};
}

Status RolloutView::submit(RolloutRequest request, RolloutSink& sink) {
  TIDEMILL_RETURN_IF_ERROR(check(request));
  auto sequence = make_sequence(std::move(request), sink);
  if (!share_prefixes_) {
    sequence->prefix_use = PrefixUse::kNone;
  }
  const RolloutRequest& taken = sequence->request;
  if (!taken.adapter.empty()) {
    auto slot = adapters_.find(taken.adapter);
    if (!slot.ok()) {
      return {slot.status().code(), slot.status().message() + sample(taken.id)};
    }
    sequence->slot = std::move(slot).value();
    sequence->own_weights = &sequence->slot->weights;
  }
  if (!taken.stop_strings.empty()) {
    auto stops = StopMatcher::create(taken.stop_strings);
    if (!stops.ok()) {
      return {stops.status().code(), stops.status().message() + sample(taken.id)};
    }
    sequence->stops = std::move(stops).value();
  }
  if (taken.time_limit > Duration::zero()) {
    sequence->deadline = clock_->now() + taken.time_limit;
  }
  queue_.push(std::move(sequence));
  return {};
}

void RolloutView::cancel(SampleId id) {
  if (auto sequence = queue_.take(id)) {
    deliver({std::move(sequence), FinishReason::kCancelled});
    activate_pending();
  }
}

void RolloutView::end_overdue() {
  if (!queue_.any_deadline()) {
    return;
  }
  for (auto& sequence : queue_.take_overdue(clock_->now())) {
    const std::chrono::duration<double> limit = sequence->request.time_limit;
    sequence->result.error =
        "out of time after " + std::to_string(limit.count()) + " s" + sample(sequence->request.id);
    deliver({std::move(sequence), FinishReason::kCancelled});
  }
  activate_pending();
}

Status RolloutView::load(Snapshot snapshot, WeightArrival /*arrival*/) {
  const PolicyVersion newest = pending_.has_value() ? pending_->version : version_;
  if (snapshot.version < newest) {
    return {Errc::kStaleVersion,
            "snapshot " + to_string(snapshot.version) + " is older than " + to_string(newest)};
  }
  TIDEMILL_ASSIGN_OR_RETURN(LaidOutWeights weights, shelf_.lay_out(snapshot, WeightUse::kForward));
  if (weights.base != adapters_.base()) {
    if (adapters_.in_use()) {
      return {Errc::kUnavailable, "snapshot " + to_string(snapshot.version) +
                                      " has another base than that of the adapters loaded by name"};
    }
    adapters_.set_base(weights.base, base_name(weights));
  }
  pending_ = Pending{std::move(weights), snapshot.version};
  activate_pending();
  return {};
}

bool RolloutView::has_work() const {
  return queue_.planner().any_in_flight() || queue_.planner().any_admissible(admission()) ||
         (queue_.any_deadline() && queue_.any_overdue(clock_->now()));
}

AdmissionRule RolloutView::admission() const {
  return {!pending_.has_value(), version_.step, weights_name_};  // new weights first
}

Result<StepReport> RolloutView::step(const StepBudget& budget) {
  StepReport report;
  end_overdue();
  forget_withdrawn();
  RolloutPlan plan = queue_.plan({budget.tokens, budget.prefill_tokens}, admission());
  report.cached_tokens = plan.cached_tokens;
  report.preemptions = plan.preemptions + std::exchange(preempted_between_, 0);
  report.kv_use = static_cast<double>(queue_.planner().num_pages_in_use()) /
                  static_cast<double>(device_.cache->num_pages());
  for (const PageCopy& copy : plan.copies) {
    device_.cache->copy_page(copy.from, copy.to);
  }
  for (RolloutSequence* sequence : plan.started) {
    sequence->adapter = sequence->slot != nullptr ? sequence->slot->served : nullptr;
  }
  put_adapters_together(plan.chunks);
  if (!plan.chunks.empty()) {
    // Results go out when the queue is done with all of them: a sink may submit or cancel.
    for (Finished& finished : compute(plan.chunks, report)) {
      deliver(std::move(finished));
    }
    activate_pending();
  }
  report.more = has_work();
  return report;
}

// How many of a chunk's last hidden states somebody reads: a draw the last of a sequence, those who
// share a prompt its last token's, scores of a prompt all.
std::int64_t RolloutView::num_hidden(const RolloutChunk& chunk) {
  const RolloutSequence& sequence = *chunk.sequence;
  if (sequence.request.prompt_logprobs || sequence.request.prompt_logits) {
    return chunk.num_tokens;
  }
  const std::int64_t of_draw = sequence.num_uncached() == chunk.num_tokens ? 1 : 0;
  const std::int64_t last_of_prompt = sequence.prompt_length - 1 - sequence.num_cached;
  const bool shares = sequence.prefix_use == PrefixUse::kShared && last_of_prompt >= 0 &&
                      last_of_prompt < chunk.num_tokens;
  return std::max(of_draw, shares ? chunk.num_tokens - last_of_prompt : 0);
}

std::vector<RolloutView::Finished> RolloutView::compute(const std::vector<RolloutChunk>& chunks,
                                                        StepReport& report) {
  Batch batch;
  for (const RolloutChunk& chunk : chunks) {
    if (chunk.num_tokens == 0) {
      continue;  // its next token is drawn from a row that is there
    }
    const RolloutSequence& sequence = *chunk.sequence;
    const auto first = sequence.tokens.begin() + sequence.num_cached;
    batch.ids.insert(batch.ids.end(), first, first + chunk.num_tokens);
    batch.segments.push_back({chunk.num_tokens, sequence.num_cached, sequence.pages,
                              adapter_of(sequence, weights_), SegmentMode::kInference,
                              num_hidden(chunk)});
    const bool decodes = sequence.has_response() && sequence.num_uncached() == 1;
    (decodes ? report.decode_tokens : report.prefill_tokens) += chunk.num_tokens;
  }
  ConstMatrix hidden;
  if (!batch.segments.empty()) {
    const bool keeps = keeps_rows(chunks, batch.num_rows());
    hidden = device_.transformer->forward(
        *weights_.base, batch, *device_.cache,
        keeps ? generated_->begin_pass(names_of(chunks)) : ForwardOptions());
    if (keeps) {
      generated_->end_pass();
    }
  }
  const std::vector<Draw> draws = drawer_.run(weights_, hidden, chunks);
  advance(chunks, hidden);
  std::vector<Finished> finished;
  for (const Draw& draw : draws) {
    if (const auto reason = apply(draw)) {
      const SampleId id = draw.sequence->request.id;
      finished.push_back(
          {*reason == FinishReason::kFailed ? queue_.take(id) : queue_.take_finished(id), *reason});
    }
  }
  return finished;
}

// Whether rows are kept for training: all rows of the pass have to be the policy's.
bool RolloutView::keeps_rows(const std::vector<RolloutChunk>& chunks, std::int64_t num_rows) const {
  if (generated_ == nullptr) {
    return false;
  }
  std::int64_t kept = 0;
  for (const RolloutChunk& chunk : chunks) {
    if (chunk.sequence->adapter != nullptr) {
      return false;
    }
    kept += chunk.sequence->request.keep_rows ? chunk.num_tokens : 0;
  }
  return kept > 0 && generated_->has_room(num_rows, kept);
}

// The names of the rows of chunks; none for those that nobody will ask for.
std::vector<std::optional<DigestKey>> RolloutView::names_of(
    const std::vector<RolloutChunk>& chunks) {
  std::vector<std::optional<DigestKey>> names;
  for (const RolloutChunk& chunk : chunks) {
    if (chunk.sequence->request.keep_rows) {
      append_names(chunk, names);
    } else {
      names.resize(names.size() + static_cast<std::size_t>(chunk.num_tokens));
    }
  }
  return names;
}

// Moves on what was computed, and keeps the hidden states that others may draw from.
void RolloutView::advance(const std::vector<RolloutChunk>& chunks, ConstMatrix hidden) {
  std::int64_t first_row = 0;
  for (const RolloutChunk& chunk : chunks) {
    RolloutSequence& sequence = *chunk.sequence;
    const std::int64_t last_of_prompt = sequence.prompt_length - 1 - sequence.num_cached;
    HiddenRow row;
    if (sequence.prefix_use == PrefixUse::kShared && last_of_prompt >= 0 &&
        last_of_prompt < chunk.num_tokens) {
      const float* begin = hidden.row(first_row + last_of_prompt);
      row = std::make_shared<const std::vector<float>>(begin, begin + hidden.cols);
    }
    first_row += chunk.num_tokens;
    queue_.advance(chunk, std::move(row));
    sequence.num_scored =
        std::max(sequence.num_scored, std::min(sequence.num_cached, sequence.prompt_length));
  }
}

// Appends what was drawn; returns why the sequence has ended, if it has.
std::optional<FinishReason> RolloutView::apply(const Draw& draw) {
  RolloutSequence& sequence = *draw.sequence;
  if (!draw.error.empty()) {
    sequence.result.error = draw.error;
    sequence.result.prompt_logprobs.clear();  // they would end in the middle
    sequence.result.prompt_logits.clear();
    return FinishReason::kFailed;
  }
  if (draw.token >= 0) {
    sequence.tokens.push_back(draw.token);
    sequence.result.behavior_logprobs.push_back(draw.logprob);
    const ServedAdapter* adapter = sequence.adapter.get();
    count_version(sequence.result.versions, adapter != nullptr ? adapter->version : version_);
    if (std::ranges::find(sequence.request.stop_ids, draw.token) !=
        sequence.request.stop_ids.end()) {
      return FinishReason::kStop;
    }
    if (sequence.stops.has_value() && sequence.stops->feed(token_text_(draw.token)).has_value()) {
      return FinishReason::kStop;
    }
  }
  const bool full = sequence.length() - sequence.prompt_length >= sequence.max_new_tokens;
  return full ? std::optional(FinishReason::kLength) : std::nullopt;
}

void RolloutView::deliver(Finished finished) {
  RolloutSequence& sequence = *finished.sequence;
  RolloutResult result = std::move(sequence.result);
  result.id = sequence.request.id;
  result.finish_reason = finished.reason;
  const auto response = sequence.response();
  result.response_ids.assign(response.begin(), response.end());
  sequence.slot = nullptr;  // it has ended, also for a sink that looks
  sequence.adapter = nullptr;
  sequence.sink->on_rollout(std::move(result));
}

void RolloutView::activate_pending() {
  if (pending_.has_value() && !queue_.planner().any_in_flight()) {
    weights_ = std::move(pending_->weights);
    version_ = pending_->version;
    pending_.reset();
    weights_name_ = weights_name(weights_);
    if (generated_ != nullptr) {
      // Rows go with the weights, even to weights of the same content: what is cached then would
      // keep others from being computed, and kept, again.
      generated_->clear();
      queue_.planner().keep_only({});
    }
    keep_served();
  }
}

// Drops what nothing could find any more: what is cached is found by the name of its weights.
void RolloutView::keep_served() {
  std::vector<std::string_view> names{weights_name_};
  adapters_.append_weight_names(names);
  queue_.planner().keep_only(names);
}

void RolloutView::forget_withdrawn() {
  if (num_withdrawn_ != adapters_.num_withdrawn()) {
    num_withdrawn_ = adapters_.num_withdrawn();
    keep_served();
  }
}

}  // namespace tidemill::engines
