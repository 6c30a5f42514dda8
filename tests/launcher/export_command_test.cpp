// SPDX-License-Identifier: Apache-2.0
// Tests `export`: exported runs and merges have the expected weights, and wrong targets are
// refused.
#include <gmock/gmock.h>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "storage/run_files/commit_meta.hpp"
#include "tests/launcher/command_run.hpp"

namespace tidemill::launcher {
namespace {

using ::testing::HasSubstr;

const std::string kGolden = TIDEMILL_TEST_DIR "/golden/engine/";

std::string bytes_of(const Tensor& tensor) {
  const auto bytes = tensor.data.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void expect_equal(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(tensor.dtype, b.at(name).dtype) << name;
    EXPECT_EQ(tensor.shape, b.at(name).shape) << name;
    EXPECT_EQ(bytes_of(tensor), bytes_of(b.at(name))) << name;
  }
}

enum class Trained { kModel, kAdapter };

class ExportTest : public CommandTest {
protected:
  // Writes a commit as a run does. Returns the run's directory.
  std::string commit(storage::Checkpoint state, const std::string& model, Trained trained) {
    const auto base = engines::open_model(model);
    EXPECT_TRUE(base.ok()) << base.status().message();
    storage::CommitMeta meta;
    meta.model = model;
    meta.version.step = 3;
    meta.base_digest = digest_tensors(base.value().tensors);
    meta.adapter_digest = trained == Trained::kAdapter ? "adapter" : "";
    state.blobs[storage::kCommitMetaPart] = storage::write_commit_meta(meta);
    return commit(std::move(state));
  }
  // Writes a commit as a run does that trained the adapter in `source`.
  std::string commit_adapter(const std::string& model, const std::string& source) {
    const auto base = engines::open_model(model);
    EXPECT_TRUE(base.ok()) << base.status().message();
    const auto adapter = engines::open_adapter(source, base.value().config);
    EXPECT_TRUE(adapter.ok()) << adapter.status().message();
    storage::Checkpoint state;
    state.tensors["weights"] = adapter.value().tensors;
    state.blobs["adapter_config.json"] = engines::adapter_config_text(adapter.value().config);
    return commit(std::move(state), model, Trained::kAdapter);
  }
  std::string commit(storage::Checkpoint state) {
    PosixFileSystem files;
    const std::string run = path("run");
    EXPECT_TRUE(make_directory(files, run).ok());
    write("run/run.yaml", "workflow: rl\n");
    auto store = storage::CheckpointStore::open({run, "run-1"}, files);
    EXPECT_TRUE(store.ok()) << store.status().message();
    state.step = 3;
    const auto report = store.value()->commit(state);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return run;
  }
};

TEST_F(ExportTest, AModelIsExportedInTheTypesOfItsFiles) {
  const std::string model = kGolden + "models/llama-bf16-sharded";
  const auto base = engines::open_model(model);
  ASSERT_TRUE(base.ok());
  storage::Checkpoint state;
  for (const auto& [name, tensor] : base.value().tensors) {
    std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
    widen_floats(tensor, values);
    state.tensors["weights"][name] = make_float_tensor(values, tensor.shape, DType::kF32);
  }
  const std::string run_path = commit(std::move(state), model, Trained::kModel);
  const Outcome outcome = run({"export", run_path, path("out")});
  EXPECT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_EQ(outcome.out, path("out") + ": model\n");
  const auto exported = engines::open_model(path("out"));
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  expect_equal(base.value().tensors, exported.value().tensors);
  EXPECT_TRUE(std::filesystem::exists(path("out/tokenizer.json")));

  // A single commit, given by its manifest.
  std::string manifest;
  for (const auto& entry : std::filesystem::directory_iterator(run_path + "/checkpoints")) {
    if (entry.path().filename().string().starts_with("commit-")) {
      manifest = entry.path();
    }
  }
  const Outcome again = run({"export", manifest, path("again"), "--json"});
  EXPECT_EQ(again.code, kDone) << again.err;
  EXPECT_EQ(again.lines().at(0), nlohmann::json({{"path", path("again")}, {"kind", "model"}}));
  EXPECT_TRUE(engines::open_model(path("again")).ok());
  EXPECT_EQ(run({"export", run_path, path("merged"), "--merge"}).err,
            "--merge: " + run_path + " trained no adapter\n");
}

TEST_F(ExportTest, AnAdapterRunIsExportedAsAnAdapterOrMerged) {
  const std::string model = kGolden + "models/llama-tiny";
  const std::string source = kGolden + "adapters/lora-qv";
  const auto base = engines::open_model(model);
  ASSERT_TRUE(base.ok());
  const std::string run_path = commit_adapter(model, source);

  const Outcome outcome = run({"export", run_path, path("out")});
  EXPECT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_EQ(outcome.out, path("out") + ": adapter\n");
  const auto exported = engines::open_adapter(path("out"), base.value().config);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  const auto trained = engines::open_adapter(source, base.value().config);
  ASSERT_TRUE(trained.ok()) << trained.status().message();
  expect_equal(trained.value().tensors, exported.value().tensors);

  // Merging the run and merging the adapter's directory give the same model, which differs from the
  // base.
  ASSERT_EQ(run({"export", run_path, path("a"), "--merge"}).code, kDone);
  ASSERT_EQ(run({"export", model, path("b"), "--merge", "--adapter", source}).code, kDone);
  const auto a = engines::open_model(path("a"));
  const auto b = engines::open_model(path("b"));
  ASSERT_TRUE(a.ok() && b.ok());
  expect_equal(a.value().tensors, b.value().tensors);
  const std::string changed = "model.layers.0.self_attn.q_proj.weight";
  const std::string kept = "model.layers.0.self_attn.k_proj.weight";
  EXPECT_NE(bytes_of(a.value().tensors.at(changed)), bytes_of(base.value().tensors.at(changed)));
  EXPECT_EQ(bytes_of(a.value().tensors.at(kept)), bytes_of(base.value().tensors.at(kept)));
}

TEST_F(ExportTest, ATiedModelWithATrainedHeadIsExportedUntied) {
  const std::string model = kGolden + "models/qwen2-tiny";
  auto base = engines::open_model(model);
  ASSERT_TRUE(base.ok() && base.value().config.tie_word_embeddings);
  engines::AdapterConfig config;
  config.modules_to_save = {"lm_head"};
  const auto adapter = engines::make_adapter(config, base.value(), DType::kF32, 1);
  ASSERT_TRUE(adapter.ok()) << adapter.status().message();
  PosixFileSystem files;
  ASSERT_TRUE(engines::write_adapter(files, path("adapter"), config, base.value().config,
                                     adapter.value().tensors)
                  .ok());
  const Outcome outcome =
      run({"export", model, path("out"), "--merge", "--adapter", path("adapter")});
  EXPECT_EQ(outcome.code, kDone) << outcome.err;
  const auto merged = engines::open_model(path("out"));
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  EXPECT_FALSE(merged.value().config.tie_word_embeddings);
  EXPECT_EQ(bytes_of(merged.value().tensors.at("lm_head.weight")),
            bytes_of(base.value().tensors.at("model.embed_tokens.weight")));
}

TEST_F(ExportTest, MergesOnlyIntoTheBaseOfTheRun) {
  const std::string model = path("base");
  std::filesystem::copy(kGolden + "models/llama-tiny", model);
  const auto base = engines::open_model(model);
  ASSERT_TRUE(base.ok());
  const std::string run_path = commit_adapter(model, kGolden + "adapters/lora-qv");
  EXPECT_EQ(run({"export", run_path, path("a"), "--merge"}).code, kDone);

  PosixFileSystem files;
  ASSERT_TRUE(engines::export_model(files, model, base.value().config,
                                    engines::random_model_tensors(base.value().config, 1),
                                    std::nullopt)
                  .ok());
  const Outcome changed = run({"export", run_path, path("b"), "--merge"});
  EXPECT_EQ(changed.code, kRefused);
  EXPECT_EQ(changed.err, model + ": not the model that the run began with\n");
  EXPECT_EQ(run({"export", run_path, path("c")}).code, kDone);  // without --merge
}

// A directory in place of a file makes the export fail once it has begun to write.
TEST_F(ExportTest, AFailedExportRemovesOnlyADirectoryThatItMade) {
  const std::string run_path =
      commit_adapter(kGolden + "models/llama-tiny", kGolden + "adapters/lora-qv");
  std::filesystem::create_directories(path("there/.tidemill-export/in"));
  EXPECT_NE(run({"export", run_path, path("there"), "--force"}).code, kDone);
  EXPECT_TRUE(std::filesystem::exists(path("there/.tidemill-export/in")));
}

TEST_F(ExportTest, RefusesWhatItCannotExport) {
  const std::string model = kGolden + "models/llama-tiny";
  const Outcome none = run({"export", path("none"), path("out")});
  EXPECT_EQ(none.code, kRefused);
  EXPECT_EQ(none.err, path("none") + ": no such run or commit; tidemill runs lists all runs\n");
  EXPECT_EQ(run({"export", model, path("out"), "--adapter", kGolden + "adapters/lora-qv"}).code,
            kRefused);
  const Outcome other = run({"export", kGolden + "models/llama-linear", path("out"), "--merge",
                             "--adapter", kGolden + "adapters/dora"});
  EXPECT_EQ(other.code, kRefused);
  EXPECT_THAT(other.err, HasSubstr("adapters/dora"));
  EXPECT_FALSE(std::filesystem::exists(path("out")));

  storage::Checkpoint state;
  state.tensors["weights"] = {};
  state.blobs["meta.json"] = R"({"format": 2, "model": "m", "adapter": false, "step": 1})";
  const std::string newer = commit(std::move(state));
  EXPECT_EQ(run({"export", newer, path("out")}).err,
            newer + ": meta.json: format 2 was written by a newer version of tidemill\n");
}

TEST_F(ExportTest, TheBestWeightsAreExportedIfTheyAreAskedFor) {
  const std::string model = kGolden + "models/llama-tiny";
  const auto base = engines::open_model(model);
  ASSERT_TRUE(base.ok());
  storage::Checkpoint state;
  state.tensors["weights"] = engines::random_model_tensors(base.value().config, 1);
  const std::string none = commit(state, model, Trained::kModel);
  EXPECT_EQ(run({"export", none, path("best"), "--best"}).err,
            "--best: " + none +
                " has no best weights: eval.keep_best is off, or nothing was evaluated yet\n");
  EXPECT_FALSE(std::filesystem::exists(path("best")));

  state.tensors["best"] = base.value().tensors;
  std::filesystem::remove_all(none);
  const std::string run_path = commit(std::move(state), model, Trained::kModel);
  ASSERT_EQ(run({"export", run_path, path("best"), "--best"}).code, kDone);
  ASSERT_EQ(run({"export", run_path, path("last")}).code, kDone);
  const auto best = engines::open_model(path("best"));
  const auto last = engines::open_model(path("last"));
  ASSERT_TRUE(best.ok() && last.ok());
  expect_equal(best.value().tensors, base.value().tensors);
  EXPECT_NE(digest_tensors(last.value().tensors), digest_tensors(base.value().tensors));
}

// The base's weights are not saved, so an adapter over random ones is of use only in its run.
TEST_F(ExportTest, AnAdapterOverRandomWeightsIsNotMerged) {
  storage::CommitMeta meta;
  meta.model = kGolden + "models/llama-tiny";
  meta.random_weights = true;
  meta.adapter_digest = "adapter";
  const auto base = engines::open_model(meta.model);
  ASSERT_TRUE(base.ok());
  const auto adapter = engines::open_adapter(kGolden + "adapters/lora-qv", base.value().config);
  ASSERT_TRUE(adapter.ok()) << adapter.status().message();
  storage::Checkpoint state;
  state.tensors["weights"] = adapter.value().tensors;
  state.blobs["adapter_config.json"] = engines::adapter_config_text(adapter.value().config);
  state.blobs[storage::kCommitMetaPart] = storage::write_commit_meta(meta);
  const std::string run_path = commit(std::move(state));
  EXPECT_EQ(run({"export", run_path, path("out"), "--merge"}).err,
            "--merge: the run trained its adapter over random weights, which are not saved\n");
  EXPECT_FALSE(std::filesystem::exists(path("out")));
  EXPECT_EQ(run({"export", run_path, path("out")}).code, kDone);
}

TEST_F(ExportTest, WhatACommitLacksIsNamed) {
  storage::CommitMeta meta;
  meta.model = kGolden + "models/llama-tiny";
  storage::Checkpoint state;
  state.tensors["best"] = {};
  state.blobs[storage::kCommitMetaPart] = storage::write_commit_meta(meta);
  const auto refusal = [this](const storage::Checkpoint& kept) {
    std::filesystem::remove_all(path("run"));
    return run({"export", commit(kept), path("out")}).err;
  };
  EXPECT_EQ(refusal(state), path("run") + ": the commit has no weights\n");
  state.tensors["weights"] = {};
  meta.adapter_digest = "adapter";
  state.blobs[storage::kCommitMetaPart] = storage::write_commit_meta(meta);
  EXPECT_EQ(refusal(state), path("run") + ": the commit has no adapter_config.json\n");
  state.blobs.erase(storage::kCommitMetaPart);
  EXPECT_EQ(refusal(state), path("run") + ": the commit has no meta.json\n");
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

TEST_F(ExportTest, TheTargetIsADirectoryInAnExistingOne) {
  const std::string run_path =
      commit_adapter(kGolden + "models/llama-tiny", kGolden + "adapters/lora-qv");
  EXPECT_EQ(run({"export", run_path, ""}).err, "DIR: is empty; name the directory to write\n");
  EXPECT_EQ(run({"export", run_path, path("no/out")}).err,
            path("no/out") + ": its parent folder " + path("no") + " does not exist\n");
  const std::string file = write("file", "kept");
  EXPECT_EQ(run({"export", run_path, file}).err, file + ": not a directory\n");
  EXPECT_EQ(run({"export", run_path, path("out/")}).code, kDone) << "a slash names the directory";
  EXPECT_TRUE(std::filesystem::exists(path("out/adapter_config.json")));
}

// The run's id tells its exports from those of others, and so does the time when it began.
TEST_F(ExportTest, AnExportIsReplacedOnlyByThatOfTheSameRun) {
  const std::string run_path =
      commit_adapter(kGolden + "models/llama-tiny", kGolden + "adapters/lora-qv");
  write("run/started", "2026-01-31T12:00:00\n");
  ASSERT_EQ(run({"export", run_path, path("out")}).code, kDone);
  std::ifstream mark(path("out/.tidemill-export"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(mark), {}),
            "run run-1, begun 2026-01-31T12:00:00\n");
  write("run/started", "2026-01-31T12:00:01\n");
  EXPECT_EQ(run({"export", run_path, path("out")}).err,
            path("out") +
                ": is not empty and holds no earlier export of run run-1, begun "
                "2026-01-31T12:00:01; name another directory, or replace its files with --force\n");
  EXPECT_EQ(run({"export", run_path, path("out"), "--force"}).code, kDone);
  EXPECT_EQ(run({"export", run_path, path("out")}).code, kDone);
}

TEST_F(ExportTest, AFileThatIsNotAManifestIsNamed) {
  const std::string file = write("run.yaml", "workflow: rl\n");
  const Outcome outcome = run({"export", file, path("out")});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_EQ(outcome.err, file + ": not the manifest of a commit\n");
}

TEST_F(ExportTest, WritesOnlyOverItsOwnKind) {
  const std::string model = kGolden + "models/llama-tiny";
  const std::string source = kGolden + "adapters/lora-qv";
  const auto base = engines::open_model(model);
  ASSERT_TRUE(base.ok());
  const std::string run_path = commit_adapter(model, source);

  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(run({"export", run_path, path("adapter")}).code, kDone);
    EXPECT_EQ(run({"export", run_path, path("model"), "--merge"}).code, kDone);
    std::filesystem::create_directory(path("empty"));
    EXPECT_EQ(run({"export", run_path, path("empty")}).code, kDone);
  }
  std::filesystem::create_directory(path("notes"));
  write("notes/mine.txt", "kept");
  struct Case {
    std::vector<std::string> arguments;
    std::string line;
  };
  const std::vector<Case> cases{
      {{"export", run_path, path("model")},
       path("model") + ": contains chat_template.jinja, which is not part of an exported adapter"},
      {{"export", run_path, path("adapter"), "--merge"},
       path("adapter") + ": contains adapter_config.json, which is not part of an exported model"},
      {{"export", model, path("adapter"), "--merge", "--adapter", source, "--force"},
       path("adapter") + ": contains adapter_config.json, which is not part of an exported model"},
      {{"export", run_path, path("notes"), "--force"},
       path("notes") + ": contains mine.txt, which is not part of an exported adapter"},
      {{"export", run_path, run_path, "--force"},
       run_path + ": contains checkpoints, which is not part of an exported adapter"},
  };
  EXPECT_EQ(run({"export", model, path("adapter"), "--merge", "--adapter", source}).err,
            path("adapter") + ": is not empty and holds no earlier export of model " + model +
                " with adapter " + source +
                "; name another directory, or replace its files with --force\n");
  for (const Case& item : cases) {
    const Outcome outcome = run(item.arguments);
    EXPECT_EQ(outcome.code, kRefused) << item.line;
    EXPECT_EQ(outcome.err, item.line + "; name another directory\n");
  }
  EXPECT_FALSE(std::filesystem::exists(path("model/adapter_config.json")));
  EXPECT_FALSE(std::filesystem::exists(path("adapter/model.safetensors")));
}

TEST_F(ExportTest, NeverWritesOverTheBase) {
  const std::string base = path("base");
  std::filesystem::copy(kGolden + "models/llama-tiny", base);
  const Outcome outcome =
      run({"export", base, base, "--merge", "--adapter", kGolden + "adapters/lora-qv", "--force"});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_EQ(outcome.err, base + ": is the base model itself; name another directory\n");
  EXPECT_TRUE(engines::open_model(base).ok());
}

}  // namespace
}  // namespace tidemill::launcher
