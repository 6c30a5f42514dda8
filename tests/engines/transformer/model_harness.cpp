// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/transformer/model_harness.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {

void Rows::append(ConstMatrix rows, Ops& ops) {
  cols = rows.cols;
  const std::vector<float> added = read_values(ops, rows);
  values.insert(values.end(), added.begin(), added.end());
}

double objective(const std::vector<TestSequence>& sequences, const TokenScores& scores) {
  double sum = 0.0;
  std::size_t row = 0;
  for (const TestSequence& sequence : sequences) {
    for (std::size_t t = 0; t < sequence.ids.size(); ++t, ++row) {
      sum += double{sequence.dlogprobs[t]} * double{scores.logprobs[row]} +
             double{sequence.dentropies[t]} * double{scores.entropies[row]};
    }
  }
  return sum;
}

ModelHarness::ModelHarness(const Backend& backend, const ModelConfig& model_config,
                           const TensorMap& tensors, const HarnessOptions& harness_options)
    : options(harness_options), config(model_config), ops(backend.make()), model(config, *ops) {
  load(tensors);
  KvCacheOptions cache_options;
  cache_options.dtype = options.kv;
  const std::int64_t page = ops->kv_page_bytes(attention_shape(config, 0, cache_options));
  cache_options.byte_limit =
      page * config.num_layers * (options.cache_tokens / cache_options.page_tokens);
  cache = KvCache::create(config, cache_options, *ops).value();
}

void ModelHarness::load(const TensorMap& tensors) {
  weights = ModelWeights::create(config, tensors, options.weights, *ops).value();
}

std::shared_ptr<const Adapter> ModelHarness::adapter(const AdapterSpec& spec,
                                                     const TensorMap& tensors) const {
  return Adapter::create(config, spec, tensors, *weights, options.weights.use, *ops).value();
}

std::vector<std::int32_t> ModelHarness::pages_for(std::int64_t tokens) const {
  std::vector<std::int32_t> pages;
  TIDEMILL_CHECK(cache->allocate(cache->pages_for(tokens), pages));
  return pages;
}

Rows ModelHarness::hidden(const std::vector<std::int32_t>& ids, const Adapter* adapter) {
  const auto length = static_cast<std::int64_t>(ids.size());
  const std::vector<std::int32_t> pages = pages_for(length);
  Rows rows;
  rows.append(model.forward(*weights, {ids, {{length, 0, pages, adapter}}}, *cache), *ops);
  cache->release(pages);
  return rows;
}

Rows ModelHarness::logits(ConstMatrix hidden, const Adapter* adapter) {
  const DeviceValues logits(*ops, hidden.rows, config.vocab_size);
  std::vector<AdapterRun> runs;
  append_adapter_rows(adapter, 0, hidden.rows, runs);
  model.logits(*weights, runs, hidden, logits.matrix());
  return {config.vocab_size, logits.read()};
}

Rows ModelHarness::logits(const Rows& hidden, const Adapter* adapter) {
  return logits(DeviceValues(*ops, hidden.size(), hidden.cols, hidden.values).matrix(), adapter);
}

TokenScores ModelHarness::token_logprobs(const Rows& hidden,
                                         const std::vector<std::int32_t>& targets,
                                         const HeadOptions& head) {
  TokenScores scores{std::vector<float>(targets.size()), std::vector<float>(targets.size())};
  const DeviceValues rows(*ops, hidden.size(), hidden.cols, hidden.values);
  run_all(*model.start_token_logprobs({weights.get(), nullptr, rows.matrix(), targets, head},
                                      scores.logprobs, scores.entropies));
  return scores;
}

float ModelHarness::logprob(const Rows& logits, std::int32_t target, float inv_temperature) {
  const DeviceValues row(*ops, logits.values);
  const DeviceValues result(*ops, 1, 1);
  DeviceLists lists(*ops);
  ops->log_softmax_gather(row.matrix(), lists.indices({&target, 1}), inv_temperature,
                          result.vector(), {});
  return result.read()[0];
}

Rows ModelHarness::logits_of(const std::vector<std::int32_t>& ids, const Adapter* adapter) {
  return logits(hidden(ids, adapter), adapter);
}

namespace {

// Starts the head with a loss that sets the gradients of a chunk only when it is asked for them.
std::unique_ptr<UnitSequence> start_fused_head(Transformer& model, const HeadInput& input,
                                               std::span<float> logprobs,
                                               std::span<float> entropies,
                                               const std::vector<float>& dlogprobs,
                                               const std::vector<float>& dentropies, Matrix dhidden,
                                               Gradients& gradients) {
  struct Loss {
    std::vector<float> dlogprobs;
    std::vector<float> dentropies;
    std::int64_t next_row = 0;
  };
  const std::size_t size = input.targets.size();
  const auto loss =
      std::make_shared<Loss>(Loss{std::vector<float>(size, NAN), std::vector<float>(size, NAN), 0});
  return model.start_token_loss(
      input,
      {logprobs, entropies, loss->dlogprobs, loss->dentropies,
       [loss, dlogprobs, dentropies](std::int64_t first, std::int64_t end) {
         EXPECT_LE(loss->next_row, first);
         loss->next_row = end;
         for (auto row = static_cast<std::size_t>(first); row < static_cast<std::size_t>(end);
              ++row) {
           loss->dlogprobs[row] = dlogprobs[row];
           loss->dentropies[row] = dentropies[row];
         }
       }},
      dhidden, gradients);
}

}  // namespace

TokenScores ModelHarness::train(const std::vector<TestSequence>& sequences, const Adapter* adapter,
                                const HeadOptions& head, Gradients* gradients) {
  Batch batch;
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<std::int32_t> targets;
  std::vector<float> dlogprobs;
  std::vector<float> dentropies;
  std::vector<std::int64_t> sequence_rows;
  for (const auto& ids : inference_sequences) {
    batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
    pages.push_back(pages_for(static_cast<std::int64_t>(ids.size())));
  }
  const std::int64_t inference_rows = batch.num_rows();
  for (const TestSequence& sequence : sequences) {
    const std::size_t length = sequence.ids.size();
    batch.ids.insert(batch.ids.end(), sequence.ids.begin(), sequence.ids.end());
    pages.push_back(pages_for(static_cast<std::int64_t>(length)));
    sequence_rows.push_back(static_cast<std::int64_t>(length));
    // The row of token t predicts token t + 1; the last row predicts nothing.
    for (std::size_t t = 1; t <= length; ++t) {
      const bool target = t < length && sequence.mask[t] != 0;
      targets.push_back(target ? sequence.ids[t] : -1);
      dlogprobs.push_back(target ? sequence.dlogprobs[t] : 0.0F);
      dentropies.push_back(target ? sequence.dentropies[t] : 0.0F);
    }
  }
  for (std::size_t i = 0; i < inference_sequences.size(); ++i) {
    batch.segments.push_back(
        {static_cast<std::int64_t>(inference_sequences[i].size()), 0, pages[i]});
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    batch.segments.push_back({static_cast<std::int64_t>(sequences[i].ids.size()), 0,
                              pages[inference_sequences.size() + i], adapter,
                              SegmentMode::kTraining});
  }
  Activations activations(config, gradients != nullptr ? gradients->first_layer() : 0,
                          ops->memory(), keep);
  ForwardOptions forward{.activations = &activations};
  forward.window_tokens = backward.window_tokens;
  const ConstMatrix all_hidden = model.forward(*weights, batch, *cache, forward);
  const ConstMatrix hidden =
      all_hidden.slice_rows(inference_rows, all_hidden.rows - inference_rows);
  std::vector<float> logprobs(targets.size());
  std::vector<float> entropies(targets.size());
  const HeadInput input{weights.get(), adapter, hidden, targets, head, sequence_rows};
  DeviceMatrix dhidden(ops->memory());
  if (gradients == nullptr || !fused_loss) {
    run_all(*model.start_token_logprobs(input, logprobs, entropies));
  }
  if (gradients != nullptr) {
    dhidden.reshape(hidden.rows, hidden.cols);
    const auto head_units =
        fused_loss ? start_fused_head(model, input, logprobs, entropies, dlogprobs, dentropies,
                                      dhidden.view(), *gradients)
                   : model.start_token_logprobs_backward(input, {dlogprobs, dentropies, true},
                                                         dhidden.view(), *gradients);
    run_all(*head_units);
    const auto layer_units = model.start_backward(*weights, batch, *cache, activations,
                                                  dhidden.view(), *gradients, backward);
    run_all(*layer_units);
    TIDEMILL_CHECK(ops->synchronize().ok());  // the caller may free the adapter
  }
  TokenScores scores;
  std::size_t row = 0;
  for (const TestSequence& sequence : sequences) {
    scores.logprobs.push_back(0.0F);
    scores.entropies.push_back(0.0F);
    for (std::size_t t = 1; t < sequence.ids.size(); ++t) {
      scores.logprobs.push_back(logprobs[row]);
      scores.entropies.push_back(entropies[row]);
      ++row;
    }
    ++row;
  }
  for (const auto& used : pages) {
    cache->release(used);
  }
  return scores;
}

std::vector<TestSequence> random_sequences(const ModelConfig& config,
                                           const std::vector<std::int64_t>& lengths,
                                           std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<TestSequence> sequences;
  for (const std::int64_t length : lengths) {
    TestSequence& sequence = sequences.emplace_back();
    sequence.ids = random_ids(config, length, random);
    for (std::int64_t t = 0; t < length; ++t) {
      sequence.mask.push_back(random.uniform() < 0.7 ? 1 : 0);
      sequence.dlogprobs.push_back(static_cast<float>(random.normal()));
      sequence.dentropies.push_back(static_cast<float>(random.normal()));
    }
  }
  return sequences;
}

Gradients gradients_for(const ModelConfig& config, const Adapter* adapter, Ops& ops) {
  return adapter != nullptr ? Gradients::for_adapter(config, adapter->spec(), ops).value()
                            : Gradients::for_model(config, ops).value();
}

std::vector<float> gradient_values(ModelHarness& harness,
                                   const std::vector<TestSequence>& sequences,
                                   const std::vector<std::size_t>& cuts, const Adapter* adapter,
                                   std::int64_t chunk_rows, std::int64_t unit_features) {
  Gradients gradients = gradients_for(harness.config, adapter, *harness.ops);
  std::size_t first = 0;
  for (const std::size_t end : cuts) {
    const std::vector<TestSequence> part(sequences.begin() + static_cast<std::ptrdiff_t>(first),
                                         sequences.begin() + static_cast<std::ptrdiff_t>(end));
    harness.train(part, adapter, {0.8F, chunk_rows, unit_features}, &gradients);
    first = end;
  }
  return gradients.collect().to_floats();
}

}  // namespace tidemill::engines
