// SPDX-License-Identifier: Apache-2.0
#include "bench/grpo_run.hpp"

#include <fstream>
#include <optional>
#include <stdlib.h>
#include <string>
#include <utility>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "bench/timed_process.hpp"

namespace tidemill::bench {
namespace {

constexpr Duration kTimeout = std::chrono::hours(2);

// A new folder in the system's folder for temporary files. The destructor removes it.
class WorkFolder {
public:
  WorkFolder() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "tidemill-bench-XXXXXX");
    path_ = ::mkdtemp(name.data()) == nullptr ? "" : name;
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    if (!path_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

// Returns the character that byte-level BPE writes for a byte. Printable bytes map to themselves,
// the others to 256, 257, ... in order. Source: `bytes_to_unicode`, openai/gpt-2, encoder.py.
std::string byte_letter(int byte) {
  const auto graphic = [](int b) {
    return (b >= 0x21 && b < 0x7F) || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
  };
  int code = byte;
  if (!graphic(byte)) {
    code = 256;
    for (int before = 0; before < byte; ++before) {
      code += graphic(before) ? 0 : 1;
    }
  }
  if (code < 0x80) {
    return {static_cast<char>(code)};
  }
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Returns a tokenizer of `size` tokens: the bytes, and words that occur in no text.
Json byte_tokenizer(std::int64_t size) {
  Json::Object vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.push_back({byte_letter(byte), byte});
  }
  for (std::int64_t id = 256; id < size; ++id) {
    vocabulary.push_back({"word" + std::to_string(id), id});
  }
  const Json::Object byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return Json::Object{
      {"version", "1.0"},
      {"added_tokens", Json::Array{}},
      {"normalizer", Json()},
      {"pre_tokenizer", byte_level},
      {"post_processor", Json()},
      {"decoder", byte_level},
      {"model",
       Json::Object{{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", Json::Array{}}}}};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Writes the model without its end tokens, since random weights would sometimes generate one.
Status write_model(engines::ModelFiles model, const EngineBenchOptions& options,
                   const std::filesystem::path& folder) {
  PosixFileSystem files;
  model.config.eos_token_ids.clear();
  std::optional<std::filesystem::path> source;
  if (!options.model_directory.empty()) {
    source = options.model_directory;
  }
  const std::filesystem::path path = folder / "model";
  TIDEMILL_RETURN_IF_ERROR(engines::export_model(files, path, model.config, model.tensors, source));
  std::error_code ignored;
  std::filesystem::remove(path / "generation_config.json", ignored);
  if (!source.has_value()) {
    write_text(path / "tokenizer.json", byte_tokenizer(model.config.vocab_size).to_text());
  }
  return {};
}

// Returns one prompt per line. Each byte is a token: digits and spaces, of which no two merge.
std::string prompt_lines(const GrpoShape& shape) {
  std::string lines;
  for (std::int64_t n = 0; n < shape.prompts; ++n) {
    std::string text;
    for (std::int64_t i = 0; i < shape.prompt_tokens / 2; ++i) {
      text += std::to_string((3 * i + n) % 10) + " ";
    }
    lines += Json(Json::Object{{"prompt", text}, {"answer", ""}}).to_line();
  }
  return lines;
}

// Matches a fifth to a half of random responses, whose tokens are bytes and "word256" to
// "word1023", or bytes and pairs of bytes.
constexpr const char* kRewardedEnd = "[0-4A-Za-z]$";

// Returns the run's file as JSON, which is valid YAML. Rewards differ within most groups, so that
// most samples have gradients.
std::string run_file(const GrpoShape& shape, const GrpoRunOptions& how, int threads) {
  const Json::Object adapter{{"kind", "lora"},
                             {"rank", shape.rank},
                             {"alpha", 2 * shape.rank},
                             {"target_modules", "all-linear"}};
  return Json(Json::Object{
                  {"workflow", "rl"},
                  {"name", "bench"},
                  {"model", Json::Object{{"path", "model"},
                                         {"dtype", how.compute == DType::kF32 ? "f32" : "bf16"}}},
                  {"data", Json::Object{{"train", "prompts.jsonl"}}},
                  {"rollout", Json::Object{{"group_size", shape.group_size},
                                           {"max_new_tokens", shape.new_tokens}}},
                  {"reward", Json::Object{{"kind", "regex"}, {"pattern", kRewardedEnd}}},
                  {"algorithm", Json::Object{{"name", "grpo"}}},
                  {"staleness", Json::Object{{"max", 0}}},
                  {"train", Json::Object{{"steps", how.steps},
                                         {"prompts_per_step", shape.prompts},
                                         {"learning_rate", 1e-4},
                                         {"adapter", adapter}}},
                  {"checkpoint", Json::Object{{"every_steps", 0}}},
                  {"device", Json::Object{{"threads", threads}}}})
      .to_text();
}

// Reads the lines of `tidemill run --json`.
Result<GrpoRun> read_run(const TimedProcess& process, const GrpoShape& shape) {
  GrpoRun run;
  run.peak_bytes = process.peak_bytes;
  double last = 0.0;
  for (const TimedLine& line : process.lines) {
    TIDEMILL_ASSIGN_OR_RETURN(const Json record, parse_json(line.text));
    const Json* kind = record.find("kind");
    if (kind == nullptr || kind->if_string() == nullptr || *kind->if_string() != "train") {
      continue;
    }
    const Json* tokens = record.find("response_tokens");
    const std::int64_t expected = shape.prompts * shape.group_size * shape.new_tokens;
    if (tokens == nullptr || tokens->number().value_or(0.0) != static_cast<double>(expected)) {
      return Status(Errc::kInternal, "a step of the run did not train on " +
                                         std::to_string(expected) + " response tokens");
    }
    const Json* gradient = record.find("gradient_norm");
    if (gradient == nullptr || gradient->number().value_or(0.0) <= 0.0) {
      return Status(Errc::kInternal, "a step of the run had no gradient");
    }
    if (last > 0.0) {
      run.step_seconds.push_back(line.seconds - last);
    } else {
      run.start_seconds = line.seconds;
    }
    last = line.seconds;
  }
  if (last == 0.0) {
    return Status(Errc::kInternal, "the run printed no step");
  }
  return run;
}

// Returns the peak memory that the program expects of the run.
Result<double> expected_bytes(const EngineBenchOptions& options,
                              const std::filesystem::path& folder) {
  TIDEMILL_ASSIGN_OR_RETURN(
      const TimedProcess process,
      run_timed({options.program.string(), "run", "bench.yaml", "--dry-run", "--json"}, folder,
                kTimeout));
  for (const TimedLine& line : process.lines) {
    TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_json(line.text));
    const Json* memory = object.find("expected_memory_bytes");
    const Json* total = memory == nullptr ? nullptr : memory->find("total");
    if (total != nullptr) {
      return total->number().value_or(0.0);
    }
  }
  return Status(Errc::kInternal, "the run printed no expected memory");
}

}  // namespace

Result<GrpoRun> run_grpo(const EngineBenchOptions& options, const GrpoShape& shape,
                         const GrpoRunOptions& how) {
  const WorkFolder folder;
  if (folder.path().empty()) {
    return Status(Errc::kUnavailable, "cannot create a temporary folder");
  }
  TIDEMILL_ASSIGN_OR_RETURN(engines::ModelFiles model, options.model(how.stored, how.preset));
  TIDEMILL_RETURN_IF_ERROR(write_model(std::move(model), options, folder.path()));
  write_text(folder.path() / "prompts.jsonl", prompt_lines(shape));
  write_text(folder.path() / "bench.yaml", run_file(shape, how, options.threads));
  TIDEMILL_ASSIGN_OR_RETURN(const double expected, expected_bytes(options, folder.path()));
  TIDEMILL_ASSIGN_OR_RETURN(const TimedProcess process,
                            run_timed({options.program.string(), "run", "bench.yaml", "--json"},
                                      folder.path(), kTimeout));
  TIDEMILL_ASSIGN_OR_RETURN(GrpoRun run, read_run(process, shape));
  run.expected_bytes = expected;
  return run;
}

}  // namespace tidemill::bench
