// SPDX-License-Identifier: Apache-2.0
// Measures llama.cpp through libllama's C API. Prints one JSON object per line.
//
//   llama_bench MODEL.gguf prefill|decode|rollout|logits|first_token [--NAME VALUE ...]
//
//   prefill      --tokens N                      tokens per second over a prompt of N tokens
//   decode       --prompt P --tokens N --sequences S
//                                                tokens per second, S sequences in each batch
//   rollout      --prompt P --tokens N --sequences S
//                                                generated tokens per second, including the time
//                                                for the prompts and for llama.cpp's sampler with
//                                                temperature 1 and top-p 0.95
//   logits       --ids 1,2,... --output FILE     writes f32 (tokens, vocabulary), times nothing
//   first_token  --prompt P                      prints the first greedy token; the caller times it
//
//   --threads N  --flash 0|1  --unified 0|1      flash attention; one KV buffer for all sequences
//   --kv_f32 0|1                                 keys and values in f32, else in f16
//   --repeat R                                   number of timed runs, after an untimed one
//
// Prompts follow a fixed rule. Decoding continues after an end token, so responses have a fixed
// length.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<llama_token>;

constexpr std::uint32_t kBatch = 512;

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "llama_bench: " << what << '\n';
  std::exit(1);
}

struct Options {
  std::string model;
  std::string what;
  std::string output;
  Ids ids;
  int threads = 1;
  int tokens = 64;
  int prompt = 64;
  int sequences = 1;
  int repeat = 3;
  bool flash = false;
  bool unified = false;
  bool kv_f32 = false;
};

int number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 0 || value > 1'000'000) {
    fail(name + ": must be an integer from 0 to 1000000, not \"" + text + "\"");
  }
  return static_cast<int>(value);
}

Ids parse_ids(const std::string& text) {
  Ids ids;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    ids.push_back(number("--ids", part));
  }
  return ids;
}

Options parse(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2 || words.size() % 2 != 0) {
    fail("usage: llama_bench MODEL prefill|decode|rollout|logits|first_token [--NAME VALUE ...]");
  }
  Options options;
  options.model = words[0];
  options.what = words[1];
  std::map<std::string, int*> counts{{"--threads", &options.threads},
                                     {"--tokens", &options.tokens},
                                     {"--prompt", &options.prompt},
                                     {"--sequences", &options.sequences},
                                     {"--repeat", &options.repeat}};
  std::map<std::string, bool*> switches{
      {"--flash", &options.flash}, {"--unified", &options.unified}, {"--kv_f32", &options.kv_f32}};
  for (std::size_t i = 2; i < words.size(); i += 2) {
    const std::string& name = words[i];
    const std::string& value = words[i + 1];
    if (counts.contains(name)) {
      *counts[name] = number(name, value);
    } else if (switches.contains(name)) {
      *switches[name] = number(name, value) != 0;
    } else if (name == "--ids") {
      options.ids = parse_ids(value);
    } else if (name == "--output") {
      options.output = value;
    } else {
      fail("unknown option: " + name);
    }
  }
  return options;
}

// Holds a model and a context that is large enough for the options.
class Session {
public:
  explicit Session(const Options& options) : options_(options) {
    llama_model_params model = llama_model_default_params();
    model_.reset(llama_model_load_from_file(options.model.c_str(), model));
    if (!model_) {
      fail("cannot load " + options.model);
    }
    const int longest = std::max<int>(options.prompt + options.tokens + 1,
                                      static_cast<int>(options.ids.size()) + 1);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(longest * options.sequences);
    params.n_batch = kBatch;
    params.n_ubatch = kBatch;
    params.n_seq_max = static_cast<std::uint32_t>(options.sequences);
    params.n_threads = options.threads;
    params.n_threads_batch = options.threads;
    params.kv_unified = options.unified;
    params.type_k = options.kv_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    params.type_v = params.type_k;
    params.flash_attn_type =
        options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) {
      fail("cannot create a context");
    }
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    batch_ = llama_batch_init(static_cast<std::int32_t>(kBatch), 0, 1);
  }
  ~Session() { llama_batch_free(batch_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int vocabulary() const { return vocabulary_; }
  [[nodiscard]] llama_context* context() { return context_.get(); }
  [[nodiscard]] int batched() const { return batch_.n_tokens; }

  // Removes the positions from `position` on from the cache of every sequence.
  void cut(llama_pos position) {
    for (int s = 0; s < options_.sequences; ++s) {
      llama_memory_seq_rm(llama_get_memory(context_.get()), s, position, -1);
    }
  }

  void clear() { llama_memory_clear(llama_get_memory(context_.get()), true); }

  // Returns ids that follow a fixed rule, with a different start for each sequence.
  [[nodiscard]] Ids made_ids(int count, int sequence) const {
    Ids ids(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      ids[static_cast<std::size_t>(i)] = (17 + 31 * i + 101 * sequence) % vocabulary_;
    }
    return ids;
  }

  void add(llama_token id, llama_pos position, int sequence, bool wants_logits) {
    const auto at = batch_.n_tokens++;
    batch_.token[at] = id;
    batch_.pos[at] = position;
    batch_.n_seq_id[at] = 1;
    batch_.seq_id[at][0] = sequence;
    batch_.logits[at] = wants_logits ? 1 : 0;
  }

  void run() {
    if (llama_decode(context_.get(), batch_) != 0) {
      fail("llama_decode failed");
    }
    llama_synchronize(context_.get());
    batch_.n_tokens = 0;
  }

  // Runs a prompt. Computes logits of its last token, or of all tokens if `all_logits`.
  void run_prompt(const Ids& ids, int sequence, bool all_logits = false) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      add(ids[i], static_cast<llama_pos>(i), sequence, all_logits || i + 1 == ids.size());
      if (static_cast<std::uint32_t>(batch_.n_tokens) == kBatch || i + 1 == ids.size()) {
        run();
      }
    }
  }

  [[nodiscard]] const float* logits(int row) {
    const float* found = llama_get_logits_ith(context_.get(), row);
    if (found == nullptr) {
      fail("llama.cpp returned no logits for row " + std::to_string(row));
    }
    return found;
  }

  [[nodiscard]] llama_token greedy(int row) {
    const float* values = logits(row);
    return static_cast<llama_token>(std::max_element(values, values + vocabulary_) - values);
  }

private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
  };

  const Options& options_;
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
  llama_batch batch_{};
  int vocabulary_ = 0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the tokens per second over one prompt.
double prefill(Session& session, const Options& options) {
  session.clear();
  const Ids ids = session.made_ids(options.tokens, 0);
  const auto start = Clock::now();
  session.run_prompt(ids, 0);
  return options.tokens / seconds_since(start);
}

// Runs the prompt of every sequence. Returns the next token of each.
Ids run_prompts(Session& session, const Options& options) {
  Ids next;
  for (int s = 0; s < options.sequences; ++s) {
    session.run_prompt(session.made_ids(options.prompt, s), s);
    next.push_back(session.greedy(-1));
  }
  return next;
}

// Generates from the end of the prompts. Returns the tokens per second of all sequences together,
// and removes the responses from the cache.
double decode(Session& session, const Options& options, Ids next) {
  const auto start = Clock::now();
  for (int step = 0; step < options.tokens; ++step) {
    for (int s = 0; s < options.sequences; ++s) {
      session.add(next[static_cast<std::size_t>(s)], options.prompt + step, s, true);
    }
    session.run();
    for (int s = 0; s < options.sequences; ++s) {
      next[static_cast<std::size_t>(s)] = session.greedy(s);
    }
  }
  const double rate = options.tokens * options.sequences / seconds_since(start);
  session.cut(options.prompt);
  return rate;
}

// The samplers of all sequences, and the time that they take.
class Samplers {
public:
  explicit Samplers(int sequences) {
    for (int s = 0; s < sequences; ++s) {
      llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
      llama_sampler_chain_add(chain, llama_sampler_init_top_p(0.95F, 1));
      llama_sampler_chain_add(chain, llama_sampler_init_temp(1.0F));
      llama_sampler_chain_add(chain, llama_sampler_init_dist(static_cast<std::uint32_t>(7 + s)));
      chains_.emplace_back(chain);
    }
  }

  // Samples the next token of a sequence from a row of the last batch.
  llama_token sample(Session& session, int sequence, int row) {
    const auto start = Clock::now();
    const llama_token token = llama_sampler_sample(
        chains_[static_cast<std::size_t>(sequence)].get(), session.context(), row);
    seconds_ += seconds_since(start);
    return token;
  }

  [[nodiscard]] double seconds() const { return seconds_; }

private:
  struct Free {
    void operator()(llama_sampler* chain) const { llama_sampler_free(chain); }
  };
  std::vector<std::unique_ptr<llama_sampler, Free>> chains_;
  double seconds_ = 0.0;
};

// Runs the prompts of all sequences in full batches. Returns the first token of each response.
Ids sample_prompts(Session& session, const Options& options, Samplers& samplers) {
  Ids next(static_cast<std::size_t>(options.sequences));
  std::vector<std::pair<int, int>> ended;  // sequences whose prompts end in this batch, and rows
  for (int s = 0; s < options.sequences; ++s) {
    const Ids ids = session.made_ids(options.prompt, s);
    for (int i = 0; i < options.prompt; ++i) {
      const bool last = i + 1 == options.prompt;
      if (last) {
        ended.emplace_back(s, session.batched());
      }
      session.add(ids[static_cast<std::size_t>(i)], i, s, last);
      const bool full = session.batched() == static_cast<int>(kBatch);
      if (full || (last && s + 1 == options.sequences)) {
        session.run();
        for (const auto& [sequence, row] : ended) {
          next[static_cast<std::size_t>(sequence)] = samplers.sample(session, sequence, row);
        }
        ended.clear();
      }
    }
  }
  return next;
}

// What a rollout took.
struct Rollout {
  double rate = 0.0;            // tokens per second
  double sampling_share = 0.0;  // of the time
};

Rollout rollout(Session& session, const Options& options) {
  session.clear();
  Samplers samplers(options.sequences);
  const auto start = Clock::now();
  Ids next = sample_prompts(session, options, samplers);
  for (int step = 0; step + 1 < options.tokens; ++step) {
    for (int s = 0; s < options.sequences; ++s) {
      session.add(next[static_cast<std::size_t>(s)], options.prompt + step, s, true);
    }
    session.run();
    for (int s = 0; s < options.sequences; ++s) {
      next[static_cast<std::size_t>(s)] = samplers.sample(session, s, s);
    }
  }
  const double seconds = seconds_since(start);
  return {options.tokens * options.sequences / seconds, samplers.seconds() / seconds};
}

void write_logits(Session& session, const Options& options) {
  if (options.ids.empty() || options.ids.size() > kBatch || options.output.empty()) {
    fail("logits needs --ids (1 to " + std::to_string(kBatch) + " ids) and --output");
  }
  session.run_prompt(options.ids, 0, true);
  std::ofstream file(options.output, std::ios::binary);
  for (int i = 0; i < static_cast<int>(options.ids.size()); ++i) {
    file.write(reinterpret_cast<const char*>(session.logits(i)),
               static_cast<std::streamsize>(sizeof(float)) * session.vocabulary());
  }
  if (!file.flush()) {
    fail("cannot write " + options.output);
  }
}

long peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void print(const Options& options, const std::vector<double>& runs, double sampling_share) {
  std::cout << R"({"what":")" << options.what << R"(","unit":"tok/s","runs":[)";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::cout << (i == 0 ? "" : ",") << runs[i];
  }
  std::cout << R"(],"threads":)" << options.threads << R"(,"prompt":)" << options.prompt
            << R"(,"tokens":)" << options.tokens << R"(,"sequences":)" << options.sequences
            << R"(,"flash":)" << options.flash << R"(,"unified":)" << options.unified
            << R"(,"sampling_share":)" << sampling_share << R"(,"peak_rss_bytes":)"
            << peak_rss_bytes() << "}\n";
}

// Repeats a measurement after an untimed run. Only a rollout samples.
void measure(Session& session, const Options& options) {
  const Ids next = options.what == "decode" ? run_prompts(session, options) : Ids{};
  std::vector<double> runs;
  double sampling_share = 0.0;
  for (int i = 0; i <= options.repeat; ++i) {
    double rate = 0.0;
    if (options.what == "rollout") {
      const Rollout done = rollout(session, options);
      rate = done.rate;
      sampling_share = done.sampling_share;
    } else {
      rate = options.what == "decode" ? decode(session, options, next) : prefill(session, options);
    }
    if (i > 0) {  // the first run warms up
      runs.push_back(rate);
    }
  }
  print(options, runs, sampling_share);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  Session session(options);
  if (options.what == "logits") {
    write_logits(session, options);
    std::cout << R"({"what":"logits","rows":)" << options.ids.size() << R"(,"columns":)"
              << session.vocabulary() << "}\n";
  } else if (options.what == "first_token") {
    session.run_prompt(session.made_ids(options.prompt, 0), 0);
    std::cout << R"({"what":"first_token","token":)" << session.greedy(-1)
              << R"(,"peak_rss_bytes":)" << peak_rss_bytes() << "}" << std::endl;
  } else if (options.what == "prefill" || options.what == "decode" || options.what == "rollout") {
    measure(session, options);
  } else {
    fail("unknown measurement: " + options.what);
  }
  return 0;
}
