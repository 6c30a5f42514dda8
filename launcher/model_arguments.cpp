// SPDX-License-Identifier: Apache-2.0
#include "launcher/model_arguments.hpp"

#include <CLI/App.hpp>

#include "base/quote.hpp"

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
  return invalid_argument("--dtype: must be f32 or bf16, not " + quote(name));
}

}  // namespace

void ModelArguments::declare(CLI::App& app) {
  app.add_option("MODEL", path_, "A model directory in the Hugging Face layout")
      ->required()
      ->type_name("");
  app.add_option("--adapter", adapter_, "An adapter directory in PEFT's layout")->type_name("DIR");
  app.add_option("--dtype", dtype_, "What the model computes in: f32, or bf16 with f32 sums")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--threads", threads_, "Threads; 0: as many as the machine has cores")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--cache-mib", cache_mib_, "Memory of cached keys and values, in MiB")
      ->type_name("N")
      ->capture_default_str();
}

Result<OpenedModel> ModelArguments::open(
    std::function<std::string(std::int32_t)> token_text) const {
  engines::RuntimeOptions options;
  TIDEMILL_ASSIGN_OR_RETURN(options.compute, parse_compute(dtype_));
  options.kv_dtype = options.compute;
  if (threads_ < 0 || threads_ > kMaxThreads) {
    return invalid_argument("--threads: must be from 0 to " + std::to_string(kMaxThreads));
  }
  options.threads = threads_;
  if (cache_mib_ < 1 || cache_mib_ > kMaxCacheMib) {
    return invalid_argument("--cache-mib: must be from 1 to " + std::to_string(kMaxCacheMib));
  }
  options.kv_bytes = cache_mib_ << 20U;
  options.token_text = std::move(token_text);

  TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelFiles files, engines::open_model(path_));
  if (!adapter_.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(options.adapter, engines::open_adapter(adapter_, files.config));
  }
  OpenedModel opened{files.config, files.generation, nullptr};
  auto runtime = engines::open_runtime(files, options);
  if (!runtime.ok()) {
    return runtime.status().with_context(path_);
  }
  opened.runtime = std::move(runtime).value();
  return opened;
}

}  // namespace tidemill::launcher
