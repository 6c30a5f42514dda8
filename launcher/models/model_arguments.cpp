// SPDX-License-Identifier: Apache-2.0
#include "launcher/models/model_arguments.hpp"

#include <CLI/App.hpp>

#include "base/text/quote.hpp"
#include "launcher/models/model_path.hpp"
#include "launcher/option_checks.hpp"
#include "workflows/memory_plan.hpp"
#include "workflows/model_run.hpp"

namespace tidemill::launcher {
namespace {

constexpr int kMaxThreads = 256;
constexpr std::int64_t kMaxCacheMib = std::int64_t{1} << 20U;

Result<DType> parse_compute(const std::string& name) {
  if (name == "f32") {
    return DType::kF32;
  }
  if (name == "bf16") {
    return DType::kBF16;
  }
  if (name == "int8") {
    return DType::kBlockI8;
  }
  if (name == "nf4") {
    return DType::kNf4;
  }
  return invalid_argument("--dtype: must be f32, bf16, int8 or nf4, not " + quote(name));
}

}  // namespace

void ModelArguments::declare(CLI::App& app) {
  app.add_option("MODEL", path_, "A model directory in the Hugging Face layout, or a GGUF file")
      ->required()
      ->type_name("");
  app.add_option("--adapter", adapter_, "An adapter directory in the PEFT layout")
      ->type_name("DIR");
  app.add_option("--dtype", dtype_,
                 "Type that the model computes in: f32, bf16 (with f32 accumulation), int8 (in "
                 "blocks of 32) or nf4; without it, bf16 if the files hold bf16, else f32")
      ->type_name("TYPE");
  auto* threads = app.add_option("--threads", threads_,
                                 "Compute threads; 0: one for each core that the process may use")
                      ->type_name("N")
                      ->capture_default_str();
  accept_integers(*threads, {0, kMaxThreads});
  auto* cache =
      app.add_option("--cache-mib", cache_mib_, "Memory for cached keys and values, in MiB")
          ->type_name("N")
          ->capture_default_str();
  accept_integers(*cache, {1, kMaxCacheMib});
}

Result<OpenedModel> ModelArguments::open(
    Log& log, std::function<std::string(std::int32_t)> token_text) const {
  TIDEMILL_RETURN_IF_ERROR(check_model_path(path_));
  warn_of_threads(threads_, log);
  engines::RuntimeOptions options;
  if (!dtype_.empty()) {  // an unknown type is refused before the files are opened
    TIDEMILL_ASSIGN_OR_RETURN(options.compute, parse_compute(dtype_));
  }
  options.threads = threads_;
  const std::int64_t allowed_mib = workflows::allowed_memory({}) >> 20U;
  if (cache_mib_ > allowed_mib) {
    return invalid_argument("--cache-mib: " + std::to_string(cache_mib_) +
                            " MiB are more than the " + std::to_string(allowed_mib) +
                            " MiB that this process may use");
  }
  options.kv_bytes = cache_mib_ << 20U;
  options.token_text = std::move(token_text);

  TIDEMILL_ASSIGN_OR_RETURN(
      const engines::ModelFiles files,
      engines::open_model(path_, TensorPlacement::kMapped, engines::FiniteCheck::kInRuntime));
  if (dtype_.empty()) {
    options.compute = workflows::default_compute_type(files.config);
  }
  options.kv_dtype = engines::cache_type(options.compute);
  if (!adapter_.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(options.adapter, engines::open_adapter(adapter_, files.config));
  }
  OpenedModel opened{files.config, files.generation, nullptr};
  try {
    auto runtime = engines::open_runtime(files, options);
    if (!runtime.ok()) {
      const bool names_file = runtime.status().message().starts_with(path_);
      return names_file ? runtime.status() : runtime.status().with_context(path_);
    }
    opened.runtime = std::move(runtime).value();
  } catch (const std::bad_alloc&) {
    return Status(Errc::kResourceExhausted, "--cache-mib: the model and " +
                                                std::to_string(cache_mib_) +
                                                " MiB of cache do not fit into memory");
  }
  return opened;
}

}  // namespace tidemill::launcher
