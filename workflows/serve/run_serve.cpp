// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/run_serve.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include <caf/all.hpp>

#include "actors/device/spawn.hpp"
#include "actors/errors.hpp"
#include "actors/gateway/http/http_server.hpp"
#include "actors/gateway/spawn.hpp"
#include "actors/tuning/spawn.hpp"
#include "actors/tuning/stores.hpp"
#include "base/files/file.hpp"
#include "base/text/mebibytes.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "workflows/actor_end.hpp"
#include "workflows/memory_plan.hpp"
#include "workflows/model_run.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/process_memory.hpp"
#include "workflows/serve/job_config.hpp"
#include "workflows/serve/job_memory.hpp"
#include "workflows/serve/job_runs.hpp"
#include "workflows/serve/run_folders.hpp"
#include "workflows/serve/tinker_server.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::workflows {
namespace {

using actors::ServedModel;

constexpr std::size_t kMaxKeysBytes = std::size_t{1} << 20U;
constexpr std::int64_t kMinCacheBytes = std::int64_t{1} << 20U;
// The fine-tuning jobs that train at the same time without `serve.tuning.max_running`, if memory
// allows.
constexpr std::int64_t kDefaultJobs = 4;
constexpr auto kPollTime = std::chrono::milliseconds(50);
// How long the last responses may take to be sent.
constexpr auto kFlushTime = std::chrono::seconds(5);
// How long a run may take to end once it is cancelled.
constexpr auto kCancelTime = std::chrono::seconds(10);

// Returns the last part of the path of a model.
std::string model_name(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::filesystem::path last =
      whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return last.extension() == ".gguf" ? last.stem().string() : last.string();
}

// Returns the type of the cache of the served model.
DType cache_type_of(const ServeOptions& options, const engines::ModelConfig& config) {
  return engines::cache_type(compute_type(options.model, config));
}

// Returns the memory of `tokens` cached positions of one sequence.
std::int64_t cached_bytes(const ServeOptions& options, const engines::ModelConfig& config,
                          std::int64_t tokens) {
  engines::RuntimeOptions runtime;
  runtime.kv_dtype = cache_type_of(options, config);
  return engines::kv_bytes_for(config, runtime, tokens);
}

// Returns the memory of the cache.
std::int64_t cache_bytes(const ServeOptions& options, const engines::ModelConfig& config) {
  const std::int64_t wanted =
      options.serve.max_running * cached_bytes(options, config, config.max_positions);
  const std::int64_t most = std::max(kMinCacheBytes, allowed_memory(options.device) / 4);
  return options.serve.kv_bytes.value_or(std::clamp(wanted, kMinCacheBytes, most));
}

// Whether the server runs fine-tuning jobs.
bool runs_jobs(const ServeOptions& options) {
  return options.serve.jobs_path.has_value();
}

// Whether adapters can be trained, by fine-tuning jobs or with Tinker's API.
bool trains(const ServeOptions& options) {
  return runs_jobs(options) || options.serve.checkpoints_path.has_value();
}

// Returns the longest prompt and response together that fit both the context and the cache.
std::int64_t max_positions(const ServeOptions& options, const engines::ModelConfig& config) {
  const std::int64_t page_bytes = cached_bytes(options, config, engines::kPageTokens);
  return std::min(config.max_positions,
                  cache_bytes(options, config) / page_bytes * engines::kPageTokens);
}

Result<std::shared_ptr<const ServedModel>> describe_model(const ServeOptions& options,
                                                          const engines::ModelFiles& files,
                                                          std::int64_t created) {
  TIDEMILL_ASSIGN_OR_RETURN(engines::Tokenizer tokenizer,
                            engines::Tokenizer::load(options.model.path));
  std::optional<engines::chat::ChatRenderer> chat;
  if (tokenizer.config().chat_templates.contains("default")) {
    TIDEMILL_ASSIGN_OR_RETURN(chat, engines::chat::ChatRenderer::open(
                                        options.model.path, tokenizer.config(), std::nullopt));
  }
  const engines::GenerationConfig& generation = files.generation;
  engines::SamplingOptions sampling;
  if (!generation.do_sample.value_or(true)) {
    sampling.temperature = 0.0F;
  }
  sampling.temperature = static_cast<float>(generation.temperature.value_or(sampling.temperature));
  sampling.top_k = static_cast<std::int32_t>(generation.top_k.value_or(0));
  sampling.top_p = static_cast<float>(generation.top_p.value_or(1.0));
  sampling.min_p = static_cast<float>(generation.min_p.value_or(0.0));
  sampling.repetition_penalty = static_cast<float>(generation.repetition_penalty.value_or(1.0));
  auto constraints = std::make_shared<engines::ConstraintCache>(
      tokenizer, static_cast<std::int32_t>(files.config.vocab_size));
  return std::make_shared<const ServedModel>(ServedModel{
      options.serve.name.value_or(model_name(options.model.path)), created, std::move(tokenizer),
      std::move(chat), files.config.vocab_size, max_positions(options, files.config), sampling,
      generation.max_new_tokens,
      generation.eos_token_ids.empty() ? files.config.eos_token_ids : generation.eos_token_ids,
      std::move(constraints)});
}

// Leaves out the part of the cache that jobs reserve, which `plan_server` adds.
engines::RuntimeOptions runtime_options(const ServeOptions& options,
                                        const engines::ModelFiles& files, const Clock& clock,
                                        engines::Tokenizer tokenizer) {
  engines::RuntimeOptions runtime;
  runtime.threads = options.device.threads;
  runtime.compute = compute_type(options.model, files.config);
  runtime.kv_dtype = cache_type_of(options, files.config);
  runtime.kv_bytes = cache_bytes(options, files.config);
  runtime.trains_adapters = trains(options);
  runtime.max_running = options.serve.max_running;
  runtime.adapter_bytes = options.serve.adapter_bytes;
  runtime.clock = &clock;
  runtime.token_text = [tokenizer = std::move(tokenizer)](std::int32_t id) {
    return std::string(tokenizer.token_bytes(id));
  };
  return runtime;
}

// What the plan of a server must leave to jobs.
struct JobMemory {
  std::int64_t tokens = 0;  // of the longest sequence of a job
  std::int64_t bytes = 0;   // that a job with one such sequence takes at least
};

// Opens the served model. If the server runs jobs, makes the adapter of a job as well, whose memory
// is to be planned.
Result<TrainedModel> open_model(const ServeOptions& options) {
  TrainOptions train;
  if (runs_jobs(options)) {
    train.adapter.emplace();
  }
  return open_trained_model(options.model, train, options.seed);
}

// Plans a job with the default adapter, and releases the adapter, because the server does not hold
// it.
JobMemory plan_job(const ServeOptions& options, TrainedModel& model) {
  if (!runs_jobs(options)) {
    return {};
  }
  SftOptions job;
  job.model = options.model;
  job.run.device = options.device;
  JobMemory memory;
  memory.tokens = max_job_tokens(options, model.files.config);
  memory.bytes = least_shared_plan(job, model, memory.tokens).total();
  model.adapter.reset();
  return memory;
}

// Plans a server on which `jobs` jobs train at the same time.
ServerPlan plan_with_jobs(const ServeOptions& options, const engines::ModelFiles& files,
                          engines::RuntimeOptions runtime, std::int64_t program,
                          std::int64_t jobs) {
  RunLoad load;
  load.program_bytes = program;
  load.engine.publishes = false;
  load.engine.snapshots = 1;
  load.engine.commits = false;
  load.engine.sampled_tokens = options.serve.max_running;
  load.constraint_bytes = static_cast<std::int64_t>(engines::ConstraintCache::kMaxBytes);
  runtime.kv_bytes += jobs * cached_bytes(options, files.config, options.serve.tuning.job_tokens);
  ServerPlan plan;
  plan.server = make_memory_plan(files, runtime, load);
  plan.max_jobs = jobs;
  const std::int64_t left = allowed_memory(options.device) - plan.server.total();
  plan.job_bytes = jobs == 0 ? 0 : std::max<std::int64_t>(left, 0) / jobs;
  return plan;
}

// Returns the smallest `device.memory_bytes`, in whole MiB, with which a server has enough for
// `jobs` jobs. A larger one may enlarge the cache, so it exceeds the plan of a smaller one.
std::int64_t least_memory(const ServeOptions& options, const engines::ModelFiles& files,
                          const engines::RuntimeOptions& runtime, std::int64_t program,
                          std::int64_t jobs, std::int64_t job_bytes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30U;  // MiB
  const auto is_enough = [&](std::int64_t mebibytes) {
    ServeOptions larger = options;
    larger.device.memory_bytes = mebibytes << 20U;
    engines::RuntimeOptions wanted = runtime;
    wanted.kv_bytes = cache_bytes(larger, files.config);
    const ServerPlan plan = plan_with_jobs(larger, files, wanted, program, jobs);
    return plan.server.total() + jobs * job_bytes <= larger.device.memory_bytes;
  };
  std::int64_t less = 0;
  std::int64_t enough = kMost;
  while (enough - less > 1) {
    const std::int64_t middle = less + (enough - less) / 2;
    (is_enough(middle) ? enough : less) = middle;
  }
  return enough << 20U;
}

Status no_room_for_jobs(const ServeOptions& options, std::int64_t needed, std::int64_t jobs,
                        const JobMemory& job, std::int64_t fits) {
  return invalid_argument(
      "device.memory_bytes: " + allowed_text(options.device) + ", and " + mebibytes_text(needed) +
      " are needed: " + mebibytes_text(needed - jobs * job.bytes) + " for the server and " +
      mebibytes_text(job.bytes) + " for " +
      (jobs == 1 ? "a job" : "each of " + std::to_string(jobs) + " jobs") + " with a sequence of " +
      std::to_string(job.tokens) + " tokens; " +
      (fits > 0 ? "serve.tuning.max_running=" + std::to_string(fits) + " fits; or raise"
                : "raise") +
      " device.memory_bytes, or lower serve.tuning.job_tokens, serve.kv_bytes or "
      "serve.adapter_bytes");
}

// Plans the memory of a server with the options `runtime` in a process that uses
// `measured` bytes; without them, measures it. Without `serve.tuning.max_running`, as
// many jobs train at the same time as fit, up to `kDefaultJobs`.
Result<ServerPlan> plan_server(const ServeOptions& options, const engines::ModelFiles& files,
                               const engines::RuntimeOptions& runtime, const JobMemory& job,
                               std::optional<std::int64_t> measured = {}) {
  const std::int64_t program = measured.has_value() ? *measured : program_bytes().value_or(0);
  if (!runs_jobs(options)) {
    const ServerPlan plan = plan_with_jobs(options, files, runtime, program, 0);
    return plan.server.total() <= allowed_memory(options.device)
               ? Result<ServerPlan>(plan)
               : invalid_argument(
                     "device.memory_bytes: " + allowed_text(options.device) +
                     ", and the server needs " +
                     mebibytes_text(least_memory(options, files, runtime, program, 0, 0)) +
                     "; raise device.memory_bytes, or lower serve.kv_bytes or serve.adapter_bytes");
  }
  const std::optional<std::int32_t>& wanted = options.serve.tuning.max_running;
  const std::int64_t most = wanted.value_or(kDefaultJobs);
  ServerPlan plan;
  std::int64_t fits = most;
  for (; fits > 0; --fits) {
    plan = plan_with_jobs(options, files, runtime, program, fits);
    if (plan.job_bytes >= job.bytes) {
      break;
    }
  }
  if (fits == 0 || (wanted.has_value() && fits < most)) {
    const std::int64_t asked = wanted.has_value() ? most : 1;
    const std::int64_t needed = least_memory(options, files, runtime, program, asked, job.bytes);
    return no_room_for_jobs(options, needed, asked, job, fits);
  }
  if (fits < most) {
    plan.note = "memory is enough for " + std::to_string(fits) + " of the " + std::to_string(most) +
                " jobs that train at the same time by default";
  }
  const std::int64_t job_tokens = options.serve.tuning.job_tokens;
  if (job_tokens != TuningOptions().job_tokens && job_tokens > job.tokens) {
    plan.note += (plan.note.empty() ? "" : "; ") + std::string("serve.tuning.job_tokens exceeds ") +
                 "the " + std::to_string(job.tokens) +
                 " tokens of the model's context, which limit the sequences of a job";
  }
  return plan;
}

Result<std::unique_ptr<engines::ModelRuntime>> open_served_runtime(
    const ServeOptions& options, const engines::ModelFiles& files,
    const engines::RuntimeOptions& runtime, const ServeEnvironment& run, const ServerPlan& plan) {
  auto opened = engines::open_runtime(files, runtime);
  if (!opened.ok()) {
    return with_limits(opened.status().with_context(options.model.path));
  }
  run.inform("device: " + std::string(opened.value()->description()));
  run.inform("memory: at most " + mebibytes_text(plan.server.total()) +
             (plan.max_jobs == 0 ? ""
                                 : ", and " + mebibytes_text(plan.job_bytes) + " for " +
                                       jobs_text(plan.max_jobs)) +
             (plan.note.empty() ? "" : "; " + plan.note));
  if (const std::int64_t context = max_positions(options, files.config);
      context < files.config.max_positions) {
    run.inform("context: " + std::to_string(context) + " of the model's " +
               std::to_string(files.config.max_positions) +
               " tokens, because serve.kv_bytes holds no more");
  }
  return opened;
}

bool is_loopback(const std::string& host) {
  return host == "::1" || host.starts_with("127.");
}

Status check_host(const ServerOptions& options) {
  return is_loopback(options.host) || options.keys_file.has_value()
             ? Status()
             : invalid_argument(
                   "serve.host: must be an address of the loopback interface (127.0.0.1 or ::1), "
                   "because requests need no key without serve.keys_file");
}

Result<actors::ApiKeys> read_keys(const std::string& path) {
  auto text = tidemill::read_text_file(path, kMaxKeysBytes);
  if (!text.ok()) {
    return text.status().with_context("serve.keys_file");
  }
  return actors::ApiKeys::parse(text.value(), path);
}

// Returns which requests the server accepts. Refuses an address that other machines can reach if no
// keys are needed.
Result<actors::AccessRules> access_rules(const ServerOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(check_host(options));
  actors::AccessRules rules;
  if (options.keys_file.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(const actors::ApiKeys keys, read_keys(*options.keys_file));
    rules.keys = std::make_shared<const actors::ApiKeys>(keys);
    if (!is_loopback(options.host)) {
      return rules;  // of any name: a page that reaches the server has no key
    }
  }
  rules.host_names = {"localhost", "127.0.0.1", "[::1]", options.host};
  if (options.host.find(':') != std::string::npos) {
    rules.host_names.push_back("[" + options.host + "]");
  }
  for (const std::string& name : options.host_names) {
    rules.host_names.push_back(actors::lower_case(name));
  }
  return rules;
}

// Offers the file `path` as the example.
Status put_example(const std::string& path, std::int64_t now, storage::FileStore& store) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text,
                            read_text_file(path, store.limits().max_file_bytes));
  storage::NewFile file;
  file.filename = std::filesystem::path(path).filename().string();
  file.purpose = storage::kFineTunePurpose;
  file.created_at = now;
  return store.put_example(std::string(kExampleFile), file, std::as_bytes(std::span(text)));
}

// Returns the stores of files and jobs, which are null if the server stores none. Borrows `files`.
Result<actors::TuningStores> open_stores(const ServerOptions& options, FileSystem& files,
                                         std::int64_t now) {
  if (!options.jobs_path.has_value()) {
    return actors::TuningStores();
  }
  std::error_code ignored;  // `open_tuning_stores` then says what is missing
  std::filesystem::create_directories(std::filesystem::path(*options.jobs_path).parent_path(),
                                      ignored);
  auto stores = actors::open_tuning_stores(*options.jobs_path, files);
  if (!stores.ok()) {
    return stores.status().with_context("serve.jobs_path");
  }
  if (options.tuning.example.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(put_example(*options.tuning.example, now, *stores.value().files)
                                 .with_context("serve.tuning.example"));
  }
  return stores;
}

// Returns the callbacks of the HTTP server, which pass its events on to the gateway.
actors::HttpCallbacks http_callbacks(const actors::GatewayActor& gateway,
                                     const actors::AccessRules& access,
                                     const actors::BodyLimits& bodies,
                                     const std::shared_ptr<actors::GatewayMetrics>& metrics) {
  actors::HttpCallbacks callbacks;
  callbacks.on_request = [gateway](actors::HttpRequest request) {
    caf::anon_send(gateway, atom::request_v, std::move(request));
  };
  callbacks.check_head =
      [access, metrics](const actors::HttpRequest& request) -> std::optional<actors::HttpResponse> {
    const auto refused = actors::check_head(request, access);
    if (!refused.has_value()) {
      return std::nullopt;
    }
    metrics->on_error(refused->status);
    return actors::openai::to_response(*refused);
  };
  callbacks.max_body = [access, bodies](const actors::HttpRequest& request) {
    return actors::max_body_bytes(request, access, bodies);
  };
  callbacks.tenant_of = [access](const actors::HttpRequest& request) {
    return actors::caller_of(request, access).tenant;
  };
  callbacks.on_sent = [gateway](actors::ExchangeId exchange) {
    caf::anon_send(gateway, atom::sent_v, exchange);
  };
  callbacks.on_closed = [gateway](actors::ExchangeId exchange) {
    caf::anon_send(gateway, atom::closed_v, exchange);
  };
  return callbacks;
}

engines::LatencyGoal latency_goal(const ServerOptions& options) {
  return {std::chrono::milliseconds(options.slo.ttft_ms),
          std::chrono::milliseconds(options.slo.tpot_ms), options.tuning.share};
}

actors::DeviceActor start_device(const ServeOptions& options, const ServeEnvironment& run,
                                 const engines::ModelConfig& config,
                                 const std::shared_ptr<engines::ModelRuntime>& runtime,
                                 actors::WorkPort& port) {
  actors::DeviceDeps device;
  device.runtime = runtime;
  device.rollout = &runtime->rollout();
  device.port = &port;
  device.adapters = &runtime->adapters();
  device.open_adapter = [config](const actors::AdapterRequest& request) {
    return open_requested_adapter(request, config);
  };
  device.clock = &run.clock;
  device.executor.goal = latency_goal(options.serve);  // also bounds how much of a prompt is read
  if (trains(options)) {
    device.open_job = [runtime](const engines::JobOptions& job) { return runtime->open_job(job); };
  }
  return actors::spawn_device(run.system, std::move(device));
}

// What the actor that runs fine-tuning jobs works with.
struct Tuning {
  const actors::TuningStores& stores;
  actors::WorkPort& port;
  FileSystem& files;
  const ServerPlan& plan;
  const engines::ModelFiles& model;
};

// Starts the actor that runs fine-tuning jobs.
actors::TunerActor start_tuner(const ServeOptions& options, const ServeEnvironment& run,
                               const std::string& model, const actors::DeviceActor& device,
                               const Tuning& tuning) {
  SharedDevice shared;
  shared.device = device;
  shared.last_job = std::make_shared<std::atomic<std::uint64_t>>(0);
  shared.publish_every = static_cast<std::uint64_t>(options.serve.tuning.publish_every_steps);
  shared.max_tokens = options.serve.tuning.job_tokens;
  actors::TunerDeps deps;
  deps.jobs = tuning.stores.jobs;
  deps.port = &tuning.port;
  deps.device = device;
  deps.complete = expand_example;
  const JobShare share{tuning.plan.job_bytes, tuning.plan.max_jobs};
  deps.check = [check = JobCheck{options, model, tuning.model, tuning.stores.files, run.parse_run,
                                 share}](const storage::JobSpec& spec) {
    return check_job(check, spec);
  };
  deps.start_run =
      make_job_runs({run.system, run.clock, tuning.files, options, model, tuning.stores.files,
                     tuning.stores.jobs, shared, tuning.plan.job_bytes,
                     max_job_tokens(options, tuning.model.config), run.parse_run, run.warn});
  deps.model_name = [model](const storage::JobRecord& job) { return tuned_model_name(model, job); };
  deps.adapter_path = [&options](const storage::JobRecord& job) {
    return (run_directory(options, job.id) / "export" / "adapter").string();
  };
  deps.remove_leftovers = [&options, &files = tuning.files, warn = run.warn](
                              storage::JobStore& jobs, const std::set<std::string>& running) {
    return remove_old_runs({options, files, jobs, warn}, running);
  };
  deps.stop_time = std::chrono::seconds(options.serve.drain_seconds);
  deps.max_running = static_cast<std::size_t>(tuning.plan.max_jobs);
  deps.unix_time = run.unix_time;
  deps.log = run.warn;
  actors::TunerActor tuner = actors::spawn_tuner(run.system, std::move(deps));
  caf::anon_send(tuner, atom::start_v);
  return tuner;
}

// Waits until a stop is requested or `gateway` ends. Then has the server complete its responses,
// and ends the gateway. Errors: the reason why the gateway or the device has ended.
Status wait_for_end(const actors::GatewayActor& gateway, actors::HttpServer& http,
                    const ServeOptions& options, const ServeEnvironment& run) {
  const ActorEnd end(gateway);
  bool ended = false;
  while (!ended && !run.stop_requested()) {
    ended = end.wait_for(kPollTime);
  }
  Status status = ended ? end.reason() : Status();
  if (!ended) {
    caf::scoped_actor self{run.system};
    self->send(gateway, atom::drain_v);
    if (!http.flush(std::chrono::seconds(options.serve.drain_seconds))) {
      run.warn("responses that were not complete after serve.drain_seconds were given up");
    }
    self->send(gateway, atom::stop_v);
    self->wait_for(gateway);
  }
  if (!http.flush(kFlushTime)) {
    run.warn("some responses could not be sent");
  }
  return status;
}

// Ends an actor and waits until it has ended, so that what it borrows can be destroyed.
template <class Handle>
void end_actor(caf::actor_system& system, const Handle& actor) {
  caf::scoped_actor self{system};
  self->send_exit(actor, caf::exit_reason::kill);
  self->wait_for(actor);
}

// Has all jobs commit and stop. Their jobs continue when the server starts again.
void stop_tuner(const ServeOptions& options, const ServeEnvironment& run,
                const actors::TunerActor& tuner) {
  const ActorEnd end(tuner);
  caf::anon_send(tuner, atom::stop_v);
  if (!end.wait_for(std::chrono::seconds(options.serve.drain_seconds) + kCancelTime)) {
    run.warn("fine-tuning jobs did not end; they are given up");
  }
}

// Returns the URL of a server that listens at `host`. If that is all addresses, names loopback.
std::string url_of(const std::string& host, std::uint16_t port) {
  const std::string name = host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
  const bool is_v6 = name.find(':') != std::string::npos;
  return "http://" + (is_v6 ? "[" + name + "]" : name) + ":" + std::to_string(port);
}

}  // namespace

std::string jobs_text(std::int64_t jobs) {
  return jobs == 1 ? "one fine-tuning job"
                   : "each of " + std::to_string(jobs) + " fine-tuning jobs";
}

Result<ServerPlan> plan_memory(const ServeOptions& options, const Clock& clock,
                               std::optional<std::int64_t> program) {
  TIDEMILL_ASSIGN_OR_RETURN(TrainedModel opened, open_model(options));
  const JobMemory job = plan_job(options, opened);
  TIDEMILL_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model,
                            describe_model(options, opened.files, 0));
  return plan_server(options, opened.files,
                     runtime_options(options, opened.files, clock, model->tokenizer), job, program);
}

Status check_access(const ServerOptions& options) {
  return access_rules(options).status();
}

Status run_serve(const ServeOptions& options, const ServeEnvironment& run) {
  TIDEMILL_ASSIGN_OR_RETURN(const actors::AccessRules access, access_rules(options.serve));
  if (const std::string warning = engines::threads_warning(options.device.threads);
      !warning.empty()) {
    run.warn(warning);
  }
  const actors::HttpAddress address{options.serve.host,
                                    static_cast<std::uint16_t>(options.serve.port)};
  actors::HttpLimits limits;
  const std::size_t connections = connections_within_limits();
  limits.max_refused_connections = std::min(limits.max_refused_connections, connections / 8);
  limits.max_connections =
      std::min(limits.max_connections, connections - limits.max_refused_connections);
  limits.tenancy = actors::tenancy_of(access);
  auto opened_server = actors::open_http_server(address, limits);
  if (!opened_server.ok()) {
    const bool is_bad = opened_server.status().code() == Errc::kInvalidArgument;
    return is_bad ? opened_server.status().with_context("serve.host") : opened_server.status();
  }
  const std::unique_ptr<actors::HttpServer> http = std::move(opened_server).value();
  PosixFileSystem machine;
  TIDEMILL_ASSIGN_OR_RETURN(const actors::TuningStores stores,
                            open_stores(options.serve, machine, run.unix_time()));
  TIDEMILL_ASSIGN_OR_RETURN(TrainedModel opened, open_model(options));
  const JobMemory job = plan_job(options, opened);
  TIDEMILL_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model,
                            describe_model(options, opened.files, run.unix_time()));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> device_port,
                            start_port("device"));
  // In the order of `ParseLane`.
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> small_port,
                            start_port("parse-small"));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> constrained_port,
                            start_port("parse-schema", actors::PortPriority::kBackground));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> large_port,
                            start_port("parse-large", actors::PortPriority::kBackground));
  const actors::ParsePorts parse_ports{small_port.get(), constrained_port.get(), large_port.get()};
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> file_port, start_port("files"));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> tuning_port,
                            start_port("tuning"));
  engines::RuntimeOptions wanted =
      runtime_options(options, opened.files, run.clock, model->tokenizer);
  TIDEMILL_ASSIGN_OR_RETURN(const ServerPlan plan, plan_server(options, opened.files, wanted, job));
  apply(plan.server.budgets, wanted);
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<engines::ModelRuntime> runtime,
                            open_served_runtime(options, opened.files, wanted, run, plan));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<TinkerServer> tinker,
                            open_tinker(options, opened.files));
  const actors::DeviceActor device_actor =
      start_device(options, run, opened.files.config, std::move(runtime), *device_port);
  const auto metrics =
      std::make_shared<actors::GatewayMetrics>(model->id, latency_goal(options.serve));
  if (tinker != nullptr) {
    start_tinker(*tinker, options, opened.files,
                 {http.get(), parse_ports, device_actor, model, metrics, actors::tenancy_of(access),
                  plan.server.total()},
                 run);
  }
  actors::TunerActor tuner;
  if (runs_jobs(options)) {
    tuner = start_tuner(options, run, model->id, device_actor,
                        {stores, *tuning_port, machine, plan, opened.files});
  }

  actors::GatewayDeps deps;
  deps.http = http.get();
  deps.device = caf::actor_cast<actors::StreamingActor>(device_actor);
  deps.model = model;
  deps.tinker = tinker != nullptr ? tinker->actor : actors::TinkerActor();
  deps.parse_ports = parse_ports;
  deps.files = stores.files;
  deps.file_port = file_port.get();
  deps.metrics = metrics;
  deps.tuning = tuner;
  deps.clock = &run.clock;
  deps.access = access;
  deps.unix_time = run.unix_time;
  deps.local_time = run.local_time;
  deps.seed = options.seed;
  actors::BodyLimits bodies;
  bodies.upload = stores.files == nullptr ? 0 : deps.limits.max_upload_bytes;
  const actors::GatewayActor gateway = actors::spawn_gateway(run.system, std::move(deps));

  Status status = http->start(http_callbacks(gateway, access, bodies, metrics));
  if (status.ok()) {
    run.on_ready({url_of(options.serve.host, http->port()), model->id,
                  options.serve.keys_file.value_or("")});
    status = wait_for_end(gateway, *http, options, run);
  }
  if (tuner) {
    stop_tuner(options, run, tuner);
  }
  // All are linked, and all are awaited.
  end_actor(run.system, gateway);
  if (tinker != nullptr) {
    end_actor(run.system, tinker->actor);
  }
  end_actor(run.system, device_actor);
  return status;
}

}  // namespace tidemill::workflows
