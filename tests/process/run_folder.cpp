// SPDX-License-Identifier: Apache-2.0
#include "tests/process/run_folder.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/check.hpp"

namespace tidemill::test {
namespace {

constexpr int kRows = 40;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the lines of metrics.jsonl. An incomplete line becomes an empty object, which equals no
// record.
std::vector<nlohmann::json> metrics(const std::filesystem::path& run) {
  std::vector<nlohmann::json> records;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    records.push_back(record.is_object() ? std::move(record) : nlohmann::json::object());
  }
  return records;
}

}  // namespace

void RunFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path() / name, std::ios::binary) << text;
}

void RunFolder::write_rows(std::size_t answer_bytes) const {
  std::string rows;
  for (int i = 0; i < kRows; ++i) {
    std::string answer = std::to_string(30 + 2 * i);
    answer.resize(std::max(answer.size(), answer_bytes), ' ');
    const nlohmann::json row{
        {"prompt", std::to_string(10 + i) + "+" + std::to_string(20 + i) + "="},
        {"answer", answer}};
    rows += row.dump() + '\n';
  }
  write("rows.jsonl", rows);
}

std::optional<Ended> RunFolder::run(const std::vector<std::string>& arguments,
                                    std::chrono::seconds hang) const {
  return ProgramRun(path(), tidemill(arguments)).finish(hang);
}

std::string RunFolder::exported_weights(const std::string& name) const {
  const std::filesystem::path target = path() / "runs" / name / "export";
  const std::string model = read_file(target / "model.safetensors");
  return model.empty() ? read_file(target / "adapter" / "adapter_model.safetensors") : model;
}

std::vector<std::string> RunFolder::exported_files(const std::string& name) const {
  const std::filesystem::path target = path() / "runs" / name / "export";
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(target, error)) {
    names.push_back(std::filesystem::relative(entry.path(), target).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::uint64_t> RunFolder::metrics_steps(const std::string& name) const {
  std::vector<std::uint64_t> steps;
  for (const nlohmann::json& record : metrics(path() / "runs" / name)) {
    if (record.value("kind", "") != "eval") {
      steps.push_back(record.value("step", std::uint64_t{0}));
    }
  }
  return steps;
}

std::vector<std::string> RunFolder::evaluations(const std::string& name) const {
  std::vector<std::string> lines;
  for (const nlohmann::json& record : metrics(path() / "runs" / name)) {
    if (record.value("kind", "") == "eval") {
      lines.push_back(record.dump());
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string RunFolder::samples(const std::string& name) const {
  return read_file(path() / "runs" / name / "samples.jsonl");
}

CommitState RunFolder::commits(const std::string& name) const {
  CommitState state;
  const std::vector<std::filesystem::path> found = manifests(name);
  std::set<std::string> named;
  for (const std::filesystem::path& path : found) {
    const auto manifest = nlohmann::json::parse(read_file(path));
    const auto step = manifest.at("step").get<std::uint64_t>();
    state.last_step = std::max(state.last_step.value_or(0), step);
    for (const auto& object : manifest.at("objects")) {
      named.insert(object.at("digest").get<std::string>());
    }
  }
  const std::filesystem::path checkpoints = path() / "runs" / name / "checkpoints";
  for (const std::string& file : names_in(checkpoints / "objects")) {
    state.leftovers = state.leftovers || !named.contains(file.substr(0, file.find('.')));
  }
  for (const std::string& file : names_in(checkpoints)) {
    state.leftovers = state.leftovers || file.starts_with('.');
  }
  return state;
}

std::vector<std::filesystem::path> RunFolder::manifests(const std::string& name) const {
  const std::filesystem::path checkpoints = path() / "runs" / name / "checkpoints";
  std::vector<std::filesystem::path> found;
  for (const std::string& file : names_in(checkpoints)) {
    if (file.starts_with("commit-") && file.ends_with(".json")) {
      found.push_back(checkpoints / file);
    }
  }
  std::reverse(found.begin(), found.end());  // the sequence comes first in the name
  return found;
}

std::string RunFolder::object_of(const std::filesystem::path& manifest, const std::string& part) {
  const auto content = nlohmann::json::parse(read_file(manifest));
  for (const auto& object : content.at("objects")) {
    if (object.at("name") == part) {
      const bool tensors = object.at("kind") == "tensors";
      return object.at("digest").get<std::string>() + (tensors ? ".safetensors" : ".blob");
    }
  }
  TIDEMILL_CHECK(false) << part;
  return {};
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::uint64_t> steps_up_to(std::uint64_t last) {
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 1; step <= last; ++step) {
    steps.push_back(step);
  }
  return steps;
}

RunOutput run_output(const RunFolder& folder, const std::string& name) {
  return {folder.exported_weights(name), folder.samples(name), folder.metrics_steps(name),
          folder.evaluations(name), folder.exported_files(name)};
}

std::string difference(const RunOutput& expected, const RunOutput& run) {
  std::string text;
  const auto add = [&text](bool same, const char* what) {
    text += same ? "" : std::string(text.empty() ? "" : ", ") + what;
  };
  add(!expected.weights.empty() && run.weights == expected.weights, "the exported weights");
  add(run.samples == expected.samples, "samples.jsonl");
  add(run.steps == expected.steps, "the steps of metrics.jsonl");
  add(run.evaluations == expected.evaluations, "the evaluations of metrics.jsonl");
  add(run.exported_files == expected.exported_files, "the files in export/");
  return text;
}

std::string small_rl_run(const std::string& name, const std::string& more) {
  return "workflow: rl\nname: " + name + "\nseed: 7\n" + random_model() +
         "data: {train: rows.jsonl, eval: rows.jsonl}\n"
         "rollout: {group_size: 4, max_new_tokens: 3, workers: 2}\n"
         "reward: {kind: regex, pattern: '[A-Z]'}\n"
         "device: {threads: 1}\n" +
         more;
}

std::string random_model() {
  return "model: {path: " TIDEMILL_SOURCE_DIR "/examples/models/arithmetic, init: random}\n";
}

}  // namespace tidemill::test
