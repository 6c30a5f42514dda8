// SPDX-License-Identifier: Apache-2.0
// Many adapters in one batch: results per request, replacing adapters, and refused adapters.
#include <cmath>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kAdapterBytes = std::int64_t{64} << 20U;

AdapterFiles adapter_of_rank(const ModelConfig& model, std::int64_t rank, std::uint64_t seed) {
  AdapterFiles adapter = small_adapter(model, seed);
  adapter.config.rank = rank;
  adapter.modules = resolve_adapter(adapter.config, model, "adapter").value();
  adapter.tensors = random_lora(adapter_spec(adapter.config, adapter.modules, model).value(), seed);
  return adapter;
}

class NamedAdaptersTest : public ::testing::TestWithParam<Arithmetic> {
protected:
  [[nodiscard]] RuntimeOptions options(std::int64_t cache_tokens) const {
    RuntimeOptions options = small_options(model_.config, GetParam().backend, cache_tokens,
                                           Training::kNo, GetParam().dtype);
    options.adapter_bytes = kAdapterBytes;
    return options;
  }

  [[nodiscard]] std::unique_ptr<ModelRuntime> open(std::int64_t cache_tokens = 1024) const {
    return open_runtime(model_, options(cache_tokens)).value();
  }

  // Returns the result of `request` alone, in a runtime that was opened with its adapter.
  [[nodiscard]] RolloutResult alone(RolloutRequest request, const AdapterFiles* adapter) const {
    RuntimeOptions single = options(1024);
    single.share_prefixes = false;
    single.adapter_bytes = 0;
    if (adapter != nullptr) {
      single.adapter = *adapter;
    }
    const auto runtime = open_runtime(model_, single).value();
    request.adapter.clear();
    request.min_step = 0;
    ResultKeeper results;
    run_requests(runtime->rollout(), {request}, results, 1000);
    return results.at(request.id.value);
  }

  static void load(ModelRuntime& runtime, const std::string& name, const AdapterFiles& files,
                   std::uint64_t step = 0) {
    PolicyVersion version;
    version.step = step;
    const Status status = runtime.adapters().load({name, version, files});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  static void expect_same_but_version(RolloutResult actual, const RolloutResult& expected) {
    actual.versions = expected.versions;
    expect_same_result(actual, expected);
  }

  // Makes the forecast expect one token per request, so that more requests start than fit.
  void expect_short_responses(RolloutEngine& engine) const {
    std::vector<RolloutRequest> brief;
    for (std::uint64_t id = 1000; id < 1100; ++id) {
      brief.push_back(request(id, "", 24));
      for (std::int32_t token = 0; token < model_.config.vocab_size; ++token) {
        brief.back().stop_ids.push_back(token);
      }
    }
    ResultKeeper results;
    run_requests(engine, brief, results);
  }

  [[nodiscard]] RolloutRequest request(std::uint64_t id, const std::string& adapter,
                                       std::int32_t max_new_tokens = 12) const {
    RolloutRequest request = sampling_request(id, model_.config, 9, max_new_tokens);
    request.adapter = adapter;
    return request;
  }

  ModelFiles model_ = small_model(4);
};

TEST_P(NamedAdaptersTest, EachRequestGetsTheSameResultAsAlone) {
  std::vector<std::pair<std::string, AdapterFiles>> adapters;
  for (const std::int64_t rank : {1, 3, 16, 17, 64, 256}) {
    adapters.emplace_back("rank " + std::to_string(rank),
                          adapter_of_rank(model_.config, rank, static_cast<std::uint64_t>(rank)));
  }
  for (const AdapterSample& sample : adapter_samples()) {
    adapters.emplace_back(sample.name, sample_adapter(model_, sample.name, 9));
  }
  const auto runtime = open();
  for (const auto& [name, files] : adapters) {
    load(*runtime, name, files);
  }
  // Three requests per adapter and three without one, mixed, with prompts of different lengths that
  // chunks split.
  std::vector<RolloutRequest> requests;
  const std::uint64_t kinds = adapters.size() + 1;
  for (std::uint64_t id = 0; id < 3 * kinds; ++id) {
    const std::uint64_t kind = id % kinds;
    requests.push_back(
        sampling_request(id, model_.config, 1 + static_cast<std::int64_t>(id % 13), 10));
    requests.back().adapter = kind == 0 ? "" : adapters[kind - 1].first;
    requests.back().prompt_logprobs = id % 5 == 0;
    requests.back().prompt_logits = id % 7 == 0;
  }
  ResultKeeper mixed;
  run_requests(runtime->rollout(), requests, mixed, 50);
  std::vector<std::vector<std::int32_t>> responses;
  for (const RolloutRequest& request : requests) {
    const std::uint64_t kind = request.id.value % kinds;
    const AdapterFiles* files = kind == 0 ? nullptr : &adapters[kind - 1].second;
    SCOPED_TRACE(request.adapter);
    expect_same_result(mixed.at(request.id.value), alone(request, files));
  }
}

// Replaces adapters at random times while sequences start, are preempted and continue.
TEST_P(NamedAdaptersTest, ASequenceKeepsTheVersionItStartedWith) {
  constexpr std::uint64_t kRequests = 16;
  constexpr std::uint64_t kNames = 2;
  const int rounds = GetParam().backend == Backend::kCpu ? 12 : 3;
  std::vector<AdapterFiles> versions;
  for (std::uint64_t step = 0; step < 4; ++step) {
    versions.push_back(adapter_of_rank(model_.config, 4, 50 + step));
  }
  int swaps_in_flight = 0;
  std::int64_t preemptions = 0;
  for (int round = 0; round < rounds; ++round) {
    RandomStream random(8, static_cast<std::uint64_t>(round));
    const auto runtime = open(64);
    RolloutEngine& engine = runtime->rollout();
    expect_short_responses(engine);
    std::uint64_t step[kNames] = {0, 0};
    for (std::uint64_t name = 0; name < kNames; ++name) {
      load(*runtime, std::to_string(name), versions[0]);
    }
    ResultKeeper results;
    std::vector<RolloutRequest> requests;
    while (requests.size() < kRequests || engine.has_work()) {
      if (requests.size() < kRequests && random.below(2) == 0) {
        const std::uint64_t id = requests.size();
        requests.push_back(request(id, id % 3 == 0 ? "" : std::to_string(id % kNames),
                                   20 + static_cast<std::int32_t>(random.below(4))));
        requests.back().prompt_ids = sampling_request(id % 2, model_.config, 9, 0).prompt_ids;
        ASSERT_TRUE(engine.submit(requests.back(), results).ok());
      }
      if (const std::uint64_t name = random.below(kNames);
          random.below(5) == 0 && step[name] + 1 < versions.size()) {
        swaps_in_flight += engine.has_work() ? 1 : 0;
        ++step[name];
        load(*runtime, std::to_string(name), versions[step[name]], step[name]);
      }
      const auto report = engine.step({1 + static_cast<std::int64_t>(random.below(20))});
      ASSERT_TRUE(report.ok());
      preemptions += report.value().preemptions;
    }
    for (const RolloutRequest& request : requests) {
      const RolloutResult& result = results.at(request.id.value);
      ASSERT_EQ(result.versions.size(), 1U) << "one version from the first token to the last";
      const AdapterFiles* files =
          request.adapter.empty() ? nullptr : &versions[result.versions[0].version.step];
      expect_same_but_version(result, alone(request, files));
    }
  }
  std::cout << "[ checked  ] " << swaps_in_flight << " swaps in flight, " << preemptions
            << " preemptions\n";
  EXPECT_GT(swaps_in_flight, rounds);
  EXPECT_GT(preemptions, 0);
}

TEST_P(NamedAdaptersTest, AReplacementAffectsOnlyRequestsThatStartLater) {
  const AdapterFiles old_files = adapter_of_rank(model_.config, 5, 1);
  const AdapterFiles new_files = adapter_of_rank(model_.config, 8, 2);
  const auto runtime = open();
  RolloutEngine& engine = runtime->rollout();
  load(*runtime, "a", old_files, 3);
  ResultKeeper results;
  ASSERT_TRUE(engine.submit(request(1, "a"), results).ok());
  ASSERT_TRUE(engine.step({4}).ok());  // a part of its prompt
  load(*runtime, "a", new_files, 4);
  ASSERT_TRUE(engine.submit(request(2, "a"), results).ok());
  EXPECT_EQ(runtime->adapters().loaded()[0].num_requests, 2);
  run_to_end(engine);
  EXPECT_EQ(runtime->adapters().loaded()[0].num_requests, 0);
  EXPECT_EQ(results.at(1).versions[0].version.step, 3U);
  EXPECT_EQ(results.at(2).versions[0].version.step, 4U);
  expect_same_but_version(results.at(1), alone(request(1, "a"), &old_files));
  expect_same_but_version(results.at(2), alone(request(2, "a"), &new_files));
}

TEST_P(NamedAdaptersTest, ARequestMayWaitForAVersionOfItsAdapter) {
  const auto runtime = open();
  RolloutEngine& engine = runtime->rollout();
  load(*runtime, "a", adapter_of_rank(model_.config, 5, 1), 3);
  RolloutRequest later = request(1, "a");
  later.min_step = 4;
  ResultKeeper results;
  ASSERT_TRUE(engine.submit(later, results).ok());
  EXPECT_FALSE(engine.has_work());
  const AdapterFiles awaited = adapter_of_rank(model_.config, 5, 2);
  load(*runtime, "a", awaited, 4);
  EXPECT_TRUE(engine.has_work());
  run_to_end(engine);
  expect_same_but_version(results.at(1), alone(later, &awaited));
}

TEST_P(NamedAdaptersTest, AcceptedRequestsFinishAfterUnload) {
  const AdapterFiles files = adapter_of_rank(model_.config, 5, 1);
  const auto runtime = open();
  RolloutEngine& engine = runtime->rollout();
  load(*runtime, "a", files);
  ResultKeeper results;
  ASSERT_TRUE(engine.submit(request(1, "a"), results).ok());
  ASSERT_TRUE(runtime->adapters().unload("a").ok());
  EXPECT_TRUE(runtime->adapters().loaded().empty());
  const Status gone = engine.submit(request(2, "a"), results);
  EXPECT_EQ(gone.code(), Errc::kNotFound);
  EXPECT_EQ(gone.message(), "adapter \"a\" is not loaded sample_id=2");
  EXPECT_EQ(runtime->adapters().unload("a").code(), Errc::kNotFound);
  run_to_end(engine);
  expect_same_but_version(results.at(1), alone(request(1, "a"), &files));
}

TEST_P(NamedAdaptersTest, OnlyEqualAdaptersSharePrompts) {
  const auto runtime = open();
  RolloutEngine& engine = runtime->rollout();
  const AdapterFiles files = adapter_of_rank(model_.config, 5, 1);
  AdapterFiles scaled = files;
  scaled.config.alpha *= 2.0;
  scaled.modules = resolve_adapter(scaled.config, model_.config, "adapter").value();
  load(*runtime, "a", files);
  load(*runtime, "twin", files);
  load(*runtime, "scaled", scaled);
  ResultKeeper results;
  const auto cached = [&](std::uint64_t id, const std::string& adapter) {
    RolloutRequest one = request(id, adapter, 3);
    one.prompt_ids = sampling_request(1, model_.config, 40, 0).prompt_ids;
    EXPECT_TRUE(engine.submit(one, results).ok());
    std::int64_t tokens = 0;
    while (engine.has_work()) {
      tokens += engine.step({512}).value().cached_tokens;
    }
    return tokens;
  };
  EXPECT_EQ(cached(1, ""), 0);
  EXPECT_EQ(cached(2, "a"), 0);
  EXPECT_EQ(cached(3, "scaled"), 0) << "equal tensors, but another scale";
  EXPECT_EQ(cached(4, "twin"), 40);
  EXPECT_EQ(cached(5, "a"), 40);
  EXPECT_EQ(cached(6, ""), 40);
  load(*runtime, "a", scaled, 1);
  EXPECT_EQ(cached(7, "a"), 40) << "pages that \"scaled\" computed";
  ASSERT_TRUE(runtime->adapters().unload("twin").ok());
  ASSERT_TRUE(engine.step({1}).ok());
  load(*runtime, "twin", files);
  EXPECT_EQ(cached(8, "twin"), 0) << "its pages were dropped while no adapter had its weights";
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedAdaptersTest,
                         ::testing::Values(Arithmetic{Backend::kCpu, DType::kF32},
                                           Arithmetic{Backend::kCpu, DType::kBF16},
                                           Arithmetic{Backend::kGuarded, DType::kBF16},
                                           Arithmetic{Backend::kReference, DType::kF32}),
                         [](const auto& test) {
                           return backend_name(test.param.backend) +
                                  std::string(dtype_name(test.param.dtype));
                         });

// -- refused adapters
// -------------------------------------------------------------------------------

class RefusedAdapterTest : public ::testing::Test {
protected:
  RefusedAdapterTest()
      : files_(adapter_of_rank(model_.config, 5, 1)), runtime_(open(kAdapterBytes)) {
    EXPECT_TRUE(runtime_->adapters().load({"a", version(2), files_}).ok());
  }

  [[nodiscard]] std::unique_ptr<ModelRuntime> open(std::int64_t adapter_bytes) const {
    RuntimeOptions options = small_options(model_.config, Backend::kCpu, 1024, Training::kNo);
    options.adapter_bytes = adapter_bytes;
    return open_runtime(model_, options).value();
  }

  static PolicyVersion version(std::uint64_t step) { return {0, 0, step}; }

  // Expects that `adapter` is refused and that the loaded adapter still gives the same result.
  void expect_refused(NamedAdapter adapter, Errc code, const std::string& message) {
    const RolloutResult before = run();
    const Status status = runtime_->adapters().load(std::move(adapter));
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_EQ(status.message(), message);
    const auto loaded = runtime_->adapters().loaded();
    ASSERT_EQ(loaded.size(), 1U);
    EXPECT_EQ(loaded[0].name, "a");
    EXPECT_EQ(loaded[0].version.step, 2U);
    RolloutResult after = run();
    after.id = before.id;
    expect_same_result(after, before);
  }

  RolloutResult run() {
    RolloutRequest request = sampling_request(7, model_.config, 5, 8);
    request.adapter = "a";
    ResultKeeper results;
    run_requests(runtime_->rollout(), {request}, results);
    return results.at(7);
  }

  // Returns the adapter with one element of one tensor replaced.
  [[nodiscard]] AdapterFiles with_value(const std::string& name, std::size_t element,
                                        float value) const {
    AdapterFiles files = files_;
    Tensor& tensor = files.tensors.at(name);
    std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
    widen_floats(tensor, values);
    values[element] = value;
    tensor = make_float_tensor(values, tensor.shape, DType::kF32);
    return files;
  }

  ModelFiles model_ = small_model(4);
  AdapterFiles files_;
  std::unique_ptr<ModelRuntime> runtime_;
  const std::string a_name_ =
      "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";  // (5, 24)
};

TEST_F(RefusedAdapterTest, ContentDeterminesTheVersionOfAnAdapterWithoutOne) {
  const auto version_of = [&](const AdapterFiles& files) {
    EXPECT_TRUE(runtime_->adapters().load({"a", std::nullopt, files, 17}).ok());
    const LoadedAdapter loaded = runtime_->adapters().loaded().front();
    EXPECT_EQ(loaded.created, 17);
    return loaded.version;
  };
  const PolicyVersion first = version_of(files_);  // replaces one with a version
  const PolicyVersion other = version_of(adapter_of_rank(model_.config, 5, 2));
  EXPECT_NE(first.line, 0U);
  EXPECT_NE(other.line, 0U);
  EXPECT_NE(first, other);
  EXPECT_EQ(version_of(files_), first);
  EXPECT_TRUE(runtime_->adapters().load({"a", version(1), files_}).ok());
}

TEST_F(RefusedAdapterTest, WeightsThatAreNotFinite) {
  expect_refused({"a", version(3), with_value(a_name_, 24 + 3, std::nanf(""))},
                 Errc::kInvalidArgument,
                 "adapter \"a\": adapter: tensor \"" + a_name_ + "\": element [1, 3] is NaN");
  expect_refused({"b", {}, with_value(a_name_, 2, std::numeric_limits<float>::infinity())},
                 Errc::kInvalidArgument,
                 "adapter \"b\": adapter: tensor \"" + a_name_ + "\": element [0, 2] is infinite");
}

TEST_F(RefusedAdapterTest, ShapesRanksAndModulesThatDoNotFit) {
  AdapterFiles other_rank = files_;
  other_rank.config.rank = 6;
  other_rank.modules = resolve_adapter(other_rank.config, model_.config, "adapter").value();
  const Status rank = runtime_->adapters().load({"b", {}, other_rank});
  EXPECT_EQ(rank.code(), Errc::kInvalidArgument);
  EXPECT_NE(rank.message().find("lora_A.weight"), std::string::npos) << rank.message();

  ModelConfig wider = model_.config;
  wider.intermediate_size += 8;
  const Status shape = runtime_->adapters().load({"b", {}, adapter_of_rank(wider, 5, 1)});
  EXPECT_EQ(shape.code(), Errc::kInvalidArgument);
  EXPECT_NE(shape.message().find("mlp.down_proj"), std::string::npos) << shape.message();

  ModelConfig deeper = model_.config;
  ++deeper.num_layers;
  deeper.sliding_windows.push_back(0);
  const Status module = runtime_->adapters().load({"b", {}, adapter_of_rank(deeper, 5, 1)});
  EXPECT_EQ(module.code(), Errc::kInvalidArgument);
  EXPECT_NE(module.message().find("layers.3"), std::string::npos) << module.message();

  AdapterFiles incomplete = files_;
  incomplete.tensors.erase(a_name_);
  const Status missing = runtime_->adapters().load({"b", {}, incomplete});
  EXPECT_EQ(missing.code(), Errc::kInvalidArgument);
  EXPECT_NE(missing.message().find(a_name_), std::string::npos) << missing.message();
  EXPECT_EQ(runtime_->adapters().loaded().size(), 1U);
  for (const Status& status : {rank, shape, module, missing}) {
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_EQ(status.message().rfind("adapter \"b\": ", 0), 0U) << status.message();
  }
}

TEST_F(RefusedAdapterTest, NamesAndVersions) {
  expect_refused({"", {}, files_}, Errc::kInvalidArgument,
                 "adapter has no name: the empty name denotes the policy");
  expect_refused({"a", version(1), files_}, Errc::kStaleVersion,
                 "adapter \"a\": version 0.0.1 is older than 0.0.2");
}

TEST_F(RefusedAdapterTest, MoreThanFitsInMemory) {
  const std::int64_t size = runtime_->adapters().loaded()[0].size_bytes;
  EXPECT_GT(size, 0);
  const std::string bytes = std::to_string(size);
  runtime_ = open(size * 2);
  NamedAdapters& adapters = runtime_->adapters();
  ASSERT_TRUE(adapters.load({"a", version(2), files_}).ok());
  ASSERT_TRUE(adapters.load({"b", {}, files_}).ok());
  const Status third = adapters.load({"c", {}, files_});
  EXPECT_EQ(third.code(), Errc::kResourceExhausted);
  EXPECT_EQ(third.message(), "adapter \"c\": needs " + bytes + " bytes, but " +
                                 std::to_string(2 * size) + " of the " + std::to_string(2 * size) +
                                 " for named adapters are in use (adapter_bytes)");
  // An unloaded adapter counts until its last request has ended.
  ResultKeeper results;
  RolloutRequest request = sampling_request(1, model_.config, 5, 8);
  request.adapter = "b";
  ASSERT_TRUE(runtime_->rollout().submit(request, results).ok());
  ASSERT_TRUE(adapters.unload("b").ok());
  EXPECT_EQ(adapters.load({"c", {}, files_}).code(), Errc::kResourceExhausted);
  run_to_end(runtime_->rollout());
  EXPECT_TRUE(adapters.load({"c", {}, files_}).ok());

  runtime_ = open(0);
  EXPECT_EQ(runtime_->adapters().load({"a", {}, files_}).message(),
            "adapter \"a\": this runtime has no memory for named adapters (adapter_bytes)");
  RuntimeOptions negative = small_options(model_.config, Backend::kCpu, 64, Training::kNo);
  negative.adapter_bytes = -1;
  EXPECT_EQ(open_runtime(model_, negative).status().message(), "adapter_bytes: -1 is negative");
}

// Adapters are laid out over one base, which cannot change while they are in use.
TEST_F(RefusedAdapterTest, AnotherBaseUnderLoadedAdapters) {
  const ModelFiles other = small_model(5);
  Snapshot snapshot;
  snapshot.version.step = 1;
  snapshot.base = other.tensors;
  snapshot.base_digest = digest_tensors(snapshot.base);
  RolloutEngine& engine = runtime_->rollout();
  const Status refused = engine.load(snapshot, WeightArrival::kFinish);
  EXPECT_EQ(refused.code(), Errc::kUnavailable);
  EXPECT_EQ(refused.message(),
            "snapshot 0.0.1 has a different base than the adapters loaded by name");
  EXPECT_EQ(engine.serving_version().step, 0U);
  ASSERT_TRUE(runtime_->adapters().unload("a").ok());
  ASSERT_TRUE(engine.load(snapshot, WeightArrival::kFinish).ok());
  EXPECT_EQ(engine.serving_version().step, 1U);
  // Adapters loaded from now on are over the new base.
  ASSERT_TRUE(runtime_->adapters().load({"a", PolicyVersion(), files_}).ok());
  const RolloutResult over_new = run();
  RuntimeOptions options = small_options(model_.config, Backend::kCpu, 1024, Training::kNo);
  options.adapter = files_;
  const auto expected = open_runtime(other, options).value();
  RolloutRequest request = sampling_request(7, model_.config, 5, 8);
  ResultKeeper results;
  run_requests(expected->rollout(), {request}, results);
  expect_same_result(over_new, results.at(7));
}

}  // namespace
}  // namespace tidemill::engines
