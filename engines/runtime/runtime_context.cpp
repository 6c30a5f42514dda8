// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/runtime_context.hpp"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "engines/ops/profile/op_profile.hpp"
#include "engines/runtime/backends.hpp"
#include "engines/runtime/reservation.hpp"

namespace tidemill::engines {
namespace {

Status check_type(std::string_view option, DType type) {
  if (type != DType::kF32 && type != DType::kBF16) {
    return invalid_argument(std::string(option) + ": " + std::string(dtype_name(type)) +
                            " is not F32 or BF16");
  }
  return {};
}

Result<std::unique_ptr<Workers>> start_workers(int count) {
  try {
    return std::make_unique<Workers>(count);
  } catch (const std::system_error& error) {
    return Status(Errc::kResourceExhausted, "threads: " + std::to_string(count) +
                                                " threads cannot be started: " + error.what());
  }
}

std::string describe(const Ops& ops, const Workers& workers, const RuntimeOptions& options) {
  std::string text(ops.description());
  text += ", " + std::to_string(workers.size()) + (workers.size() == 1 ? " thread" : " threads");
  text += ", weights " + std::string(dtype_name(options.compute));
  return text + ", cache " + std::string(dtype_name(options.kv_dtype));
}

}  // namespace

std::int64_t RuntimeContext::logit_rows(const ModelConfig& config) noexcept {
  constexpr std::int64_t kLogitBytes = std::int64_t{64} << 20U;
  return std::clamp<std::int64_t>(
      kLogitBytes / (config.vocab_size * static_cast<std::int64_t>(sizeof(float))), 16, 2048);
}

Result<std::unique_ptr<RuntimeContext>> RuntimeContext::create(const ModelConfig& config,
                                                               const RuntimeOptions& options,
                                                               const AdapterSpec& spec) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return invalid_argument("threads: " + std::to_string(options.threads) + " is not in [0, " +
                            std::to_string(kMaxThreads) + "]");
  }
  if (options.compute != DType::kBlockI8 && options.compute != DType::kNf4) {
    TIDEMILL_RETURN_IF_ERROR(check_type("compute", options.compute));
  }
  TIDEMILL_RETURN_IF_ERROR(check_type("kv_dtype", options.kv_dtype));
  auto context = std::make_unique<RuntimeContext>();
  context->config = config;
  TIDEMILL_ASSIGN_OR_RETURN(context->workers, start_workers(num_threads(options.threads)));
  auto ops = backend_factory(options).open(
      *context->workers, {reserved_bytes(config, options, spec), options.device_bytes});
  if (!ops.ok()) {
    return ops.status().with_context("memory of the cache and of passes");
  }
  context->ops = std::move(ops).value();
  if (options.profile != nullptr) {
    context->ops = make_profiled_ops(std::move(context->ops), *options.profile);
  }
  context->transformer = std::make_unique<Transformer>(config, *context->ops);
  KvCacheOptions cache;
  cache.byte_limit = options.kv_bytes;
  cache.dtype = options.kv_dtype;
  auto made = KvCache::create(config, cache, *context->ops);
  if (!made.ok()) {
    return made.status().with_context("memory of keys and values");
  }
  context->cache = std::move(made).value();
  const Status reserved =
      context->transformer->reserve(generation_limits(config, options, context->cache_tokens()));
  TIDEMILL_RETURN_IF_ERROR(reserved.with_context(
      "memory to generate " + std::to_string(options.limits.rollout_rows) + " tokens at a time"));
  context->description = describe(*context->ops, *context->workers, options);
  return context;
}

}  // namespace tidemill::engines
