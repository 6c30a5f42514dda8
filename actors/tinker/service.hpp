// SPDX-License-Identifier: Apache-2.0
// The state of Tinker's API: sessions, models, samplers, futures and checkpoints. Without CAF.
//
// A session lives while its client sends heartbeats. Its models are training jobs. A model runs its
// requests in the order of their numbers (`TurnQueue`), one at a time, and a future takes each
// result. When a session ends, its models, samplers and futures do too; its checkpoints stay.
//
//   session  open       `create_session` makes it.
//            ended      The client finishes it; no heartbeat arrives for `heartbeat_timeout`; or it
//                       sends nothing for `silence_timeout` while its tenant needs its memory.
//   model    opening    `create_model`, or `load_weights` without a model, makes it.
//            open       The job is open; requests run.
//            ended      The job could not be opened, the client unloads it, or its session ends.
//   adapter  publishing A sampler that needs it got its first request.
//            published  Requests run.
//            unloaded   The initial state. Also entered if publishing fails, if the adapter is idle
//                       while more than `max_published` are loaded or another needs room, or if its
//                       checkpoint is replaced or removed (running requests keep the old weights).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/gateway/caller.hpp"
#include "actors/gateway/fair_limit.hpp"
#include "actors/tinker/backend.hpp"
#include "actors/tinker/checkpoint_store.hpp"
#include "actors/tinker/future_table.hpp"
#include "actors/tinker/turn_queue.hpp"
#include "base/json/json.hpp"

namespace tidemill::actors::tinker {

/// The limits of a service.
struct ServiceLimits {
  Duration heartbeat_timeout = std::chrono::minutes(5);
  Duration heartbeat_time = std::chrono::seconds(10);  // between two heartbeats of the package
  /// A session that has sent nothing for as long as this ends if a new model or snapshot of its
  /// tenant needs its memory.
  Duration silence_timeout = std::chrono::seconds(30);
  /// How long requests wait for one before them that has not arrived.
  Duration turn_timeout = std::chrono::minutes(10);
  std::size_t max_sessions = 1000;
  std::size_t max_samplers = 10'000;  // of one session
  std::size_t max_url_grants = 1024;  // checkpoints whose files have URLs
  std::size_t max_models = 64;
  /// Runs without a model and without a checkpoint; the oldest are forgotten.
  std::size_t max_unused_runs = 10'000;
  /// What all models and snapshots may take together, by `ServiceDeps::model_bytes` and
  /// `snapshot_bytes`.
  std::size_t max_model_bytes = std::numeric_limits<std::size_t>::max();
  /// Bytes of the sequences in requests that wait for others before them. Neither this limit nor
  /// `max_waiting` applies to the request whose turn is next.
  std::size_t max_waiting_bytes = std::size_t{512} << 20U;
  std::size_t max_waiting = 1024;  // requests of one model
  std::size_t max_samples = 4096;  // samples that wait or are generated; further requests get 429
  /// Idle adapters are unloaded once more than this are loaded. `serve.adapter_bytes` bounds all.
  std::size_t max_published = 16;
  std::size_t max_idle_snapshots = 16;  // of one session, for samplers without a checkpoint
  FutureLimits futures;
};

/// How the served model is described to clients.
struct ServedBase {
  std::string name;
  std::string tokenizer;  // what AutoTokenizer.from_pretrained takes
  std::int64_t max_positions = 0;
};

/// What a service needs.
struct ServiceDeps {
  TuningBackend* backend = nullptr;        // borrowed
  std::shared_ptr<CheckpointStore> store;  // shared with the work at the port
  /// Runs `work` for `tenant` at a port that reads and writes the store, and then `done` on the
  /// caller's thread, not within this call. Tenants take turns; the work of one runs in its order.
  /// All calls of `done` come in the order in which the work has run.
  std::function<void(const std::string& tenant, std::function<void()> work,
                     std::function<void()> done)>
      run_work;
  /// Runs `work` at another port, and then `done` as above. Work of this kind uses no disk.
  std::function<void(std::function<void()> work, std::function<void()> done)> run_encoding;
  /// Sends the file that `open` returns, for `tenant`. `open` is called as the work of `run_work`;
  /// if it fails, `failed` is called as its `done`. Returns false if `tenant` has too many
  /// downloads.
  std::function<bool(ExchangeId, const std::string& tenant,
                     std::function<Result<std::shared_ptr<const ReadableFile>>()> open,
                     std::function<void(const Status&)> failed)>
      send_file;
  std::function<void(ExchangeId, HttpResponse)> respond;
  /// Called for each sample that has been generated, `since_arrival` after the request of `tenant`.
  /// May be empty.
  std::function<void(const engines::RolloutResult&, std::size_t prompt_tokens,
                     Duration since_arrival, const std::string& tenant)>
      on_sample;
  /// Receives one line for the log. May be empty.
  std::function<void(const std::string&)> warn;
  /// Returns the memory that a model takes. May be empty: it is then not limited.
  std::function<std::size_t(const LoraSettings&)> model_bytes;
  /// Returns the memory that a snapshot of a model takes. May be empty: it is then not limited.
  std::function<std::size_t(const LoraSettings&)> snapshot_bytes;
  std::function<TimePoint()> now;
  std::function<std::int64_t()> unix_time;  // seconds
  std::function<std::uint64_t()> random;    // 64 bits, for ids and seeds
  ServedBase base;
  ServiceLimits limits;
  Tenancy tenancy = Tenancy::kOne;  // of all limits that tenants share
};

// Requests that have few fields or none.
struct GetClientConfig {};
struct GetDynamicConfig {};
struct GetCapabilities {};
struct GetHealth {};
struct AcceptTelemetry {};
struct Heartbeat {
  std::string session_id;
};
struct FinishSession {
  std::string session_id;
};
struct GetSession {
  std::string session_id;
};
struct UnloadModel {
  std::string model_id;
};
struct GetInfo {
  std::string model_id;
};
struct JoinSampling {
  std::string sampling_session_id;
};
struct GetSampler {
  std::string sampling_session_id;
};
struct RetrieveFuture {
  std::string request_id;
};
struct CancelFuture {
  std::string request_id;
};
/// A part of a list.
struct Page {
  std::int64_t offset = 0;
  std::int64_t limit = 20;
};
struct ListSessions {
  Page page;
};
struct ListRuns {
  Page page;
};
struct GetRun {
  std::string run_id;
};
struct ListCheckpoints {
  std::optional<std::string> run_id;  // absent: of all runs
  Page page;
};
struct DeleteCheckpoint {
  CheckpointPath path;
};
struct SetTtl {
  CheckpointPath path;
  std::optional<std::int64_t> ttl_seconds;
};
struct GetWeightsInfo {
  CheckpointPath path;
};
/// Asks for the URLs of the files of an external checkpoint.
struct GetFileUrls {
  CheckpointPath path;
  std::string origin;  // of the server, as the client addresses it: "http://127.0.0.1:8000"
};
struct GetFile {
  CheckpointPath path;
  std::string name;
  std::string token;
};

/// A request.
using Call =
    std::variant<RefusedCall, GetClientConfig, GetDynamicConfig, GetCapabilities, GetHealth,
                 AcceptTelemetry, CreateSession, Heartbeat, FinishSession, GetSession, CreateModel,
                 UnloadModel, GetInfo, ForwardCall, OptimStepCall, SaveWeights, LoadWeights,
                 CreateSamplingSession, JoinSampling, GetSampler, SampleCall, RetrieveFuture,
                 RetrieveFutures, CancelFuture, ListSessions, ListRuns, GetRun, ListCheckpoints,
                 DeleteCheckpoint, SetTtl, GetWeightsInfo, GetFileUrls, GetFile>;

/// Serves Tinker's API. Every exchange gets one response.
///
/// Threads: one call at a time, the callbacks of its dependencies included.
class Service {
public:
  explicit Service(ServiceDeps deps);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service();

  /// Starts reading the list of checkpoints. Until it is there, requests about checkpoints get 503.
  void start();
  /// Handles a request of `caller`. What belongs to sessions of other tenants gets status 404.
  void handle(ExchangeId exchange, Call call, const Caller& caller);
  /// Forgets an exchange whose client has closed its connection. Requests go on: their results
  /// belong to futures.
  void forget(ExchangeId exchange);
  /// Ends what is past its deadline. Call it about once a second.
  void tick();
  /// Responds to all exchanges that wait for a result. Their clients ask again.
  void end_polls();

private:
  using Op = std::variant<ForwardCall, OptimStepCall, SaveWeights, LoadWeights, RefusedCall>;

  struct Session {
    CreateSession description;
    std::string tenant;
    TimePoint last_heartbeat{};
    TimePoint last_request{};  // of any kind
    std::set<std::string> models;
    std::set<std::string> samplers;
  };
  struct Waiting {
    Op op;
    std::size_t bytes = 0;  // bytes counted in `waiting_bytes_`
  };
  struct Model {
    std::string session_id;
    std::string tenant;
    std::string job;  // a name that no other model of this process has had
    std::size_t bytes = 0;
    RunInfo run;
    bool opening = false;  // the backend opens the job
    bool open = false;
    TurnQueue<Waiting> queue;
    /// The number of a request whose gradients are missing, until the next optimizer step.
    std::optional<std::int64_t> failed_backward;
  };
  /// A request for a model. References are borrowed.
  struct NewModel {
    const std::string& session_id;
    std::int64_t seq_id = 0;
    const std::string& digest;
  };
  struct Adapter {
    std::optional<CheckpointPath> path;         // read from the store
    std::optional<engines::Snapshot> snapshot;  // or held here
    std::string tenant;                         // of the snapshot
    std::size_t bytes = 0;                      // of the snapshot
    LoraSettings lora;
    enum class State { kUnloaded, kPublishing, kPublished } state = State::kUnloaded;
    std::vector<std::function<void(Status)>> waiting;
    bool stale = false;           // its checkpoint changed while it was being published
    std::size_t samplers = 0;     // number of samplers that use this adapter
    std::size_t uses = 0;         // requests that wait for it or run
    std::uint64_t last_used = 0;  // counts uses
  };
  /// A snapshot whose memory `model_bytes_` counts.
  struct NewSnapshot {
    std::string session_id;
    std::string tenant;
    std::int64_t sampling_seq_id = 0;
    LoraSettings lora;
    std::size_t bytes = 0;
  };
  /// What can be ended to make room, and what that gives back.
  struct Removable {
    std::size_t models = 0;
    std::size_t bytes = 0;
    std::function<void()> end;
  };
  struct Sampler {
    std::string session_id;
    std::string adapter;  // empty: the base
    std::optional<CheckpointPath> path;
    std::int64_t clients = 1;  // number of clients that have joined
    std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::string>>> completions;
    std::map<std::int64_t, std::int64_t> cursors;  // by cloned client
  };
  struct Sampling {
    std::string sampler;
    std::int64_t clone = 0;
    SampleCall call;
    Caller caller;
    std::vector<engines::RolloutResult> results;
    std::vector<SampleId> ids;
    std::size_t left = 0;
    TimePoint arrival;
    Status failure;
  };
  /// Permits fetching the files of a checkpoint by URL, without a key.
  struct UrlGrant {
    CheckpointPath path;
    std::string tenant;
    std::int64_t ends_at = 0;  // Unix time, seconds
  };
  struct Poll {
    ExchangeId exchange = 0;
    std::string sampler;
    std::int64_t clone = 0;
    std::int64_t previous = 0;
    TimePoint until{};
  };

  // Sessions and lists: service.cpp.
  void on(ExchangeId exchange, const RefusedCall& call);
  void on(ExchangeId exchange, const GetClientConfig& call);
  void on(ExchangeId exchange, const GetDynamicConfig& call);
  void on(ExchangeId exchange, const GetCapabilities& call);
  void on(ExchangeId exchange, const GetHealth& call);
  void on(ExchangeId exchange, const AcceptTelemetry& call);
  void on(ExchangeId exchange, CreateSession& call, const Caller& caller);
  void on(ExchangeId exchange, const Heartbeat& call);
  void on(ExchangeId exchange, const FinishSession& call, const Caller& caller);
  void on(ExchangeId exchange, const GetSession& call);
  void on(ExchangeId exchange, const RetrieveFuture& call);
  void on(ExchangeId exchange, const ListSessions& call, const Caller& caller);
  // Models and their requests: service_training.cpp.
  void on(ExchangeId exchange, CreateModel& call);
  void on(ExchangeId exchange, const UnloadModel& call);
  void on(ExchangeId exchange, const GetInfo& call);
  void on(ExchangeId exchange, ForwardCall& call);
  void on(ExchangeId exchange, OptimStepCall& call);
  void on(ExchangeId exchange, SaveWeights& call);
  void on(ExchangeId exchange, LoadWeights& call);
  // Sampling: service_sampling.cpp.
  void on(ExchangeId exchange, CreateSamplingSession& call);
  void on(ExchangeId exchange, const JoinSampling& call);
  void on(ExchangeId exchange, const GetSampler& call);
  void on(ExchangeId exchange, SampleCall& call, const Caller& caller);
  void on(ExchangeId exchange, const RetrieveFutures& call);
  void on(ExchangeId exchange, const CancelFuture& call);
  // Checkpoints: service_checkpoints.cpp.
  void on(ExchangeId exchange, const ListRuns& call);
  void on(ExchangeId exchange, const GetRun& call);
  void on(ExchangeId exchange, const ListCheckpoints& call);
  void on(ExchangeId exchange, const DeleteCheckpoint& call, const Caller& caller);
  void on(ExchangeId exchange, const SetTtl& call, const Caller& caller);
  void on(ExchangeId exchange, const GetWeightsInfo& call);
  void on(ExchangeId exchange, const GetFileUrls& call, const Caller& caller);
  void on(ExchangeId exchange, const GetFile& call);

  /// Returns whether an id belongs to a session of another tenant.
  [[nodiscard]] bool is_foreign(const std::string& id, const Caller& caller) const;
  void respond(ExchangeId exchange, const Json& body);
  void fail(ExchangeId exchange, const ApiError& error);
  /// Returns whether `name` is the served model. If not, responds with an error.
  [[nodiscard]] bool require_base(ExchangeId exchange, const std::string& name);
  /// Responds with the error for a failure of the store.
  void fail_storage(ExchangeId exchange, const Status& status);
  /// Returns whether a request that has the number of an earlier one is the same. If not, responds
  /// with an error. `field` has the number.
  [[nodiscard]] bool require_same_digest(ExchangeId exchange, const char* field,
                                         const std::string& request_id, const std::string& digest);
  [[nodiscard]] std::string new_id();
  void end_session(const std::string& id);
  void end_polls_before(TimePoint time);
  /// Returns a session, or responds with an error and returns null.
  Session* find_session(ExchangeId exchange, const std::string& id);

  // service_training.cpp
  void respond_future(ExchangeId exchange, const std::string& request_id,
                      const std::string& model_id);
  /// Adds a model, unless the same request has added it, and calls `open` for a new one.
  void add_model(ExchangeId exchange, const NewModel& request, RunInfo run,
                 const std::function<void(const std::string& model_id)>& open);
  void open_job(const std::string& model_id, std::optional<JobState> state,
                const Json::Object& result);
  void end_model(const std::string& id);
  void enqueue(ExchangeId exchange, const QueueTurn& turn, Op op);
  [[nodiscard]] static std::size_t bytes_of(const Op& op);
  /// Gives back what a request holds that does not run.
  void drop_waiting(const Model& model, const Waiting& waiting);
  void run_next(const std::string& model_id);
  void run(const std::string& model_id, std::int64_t seq_id, ForwardCall& call);
  void run(const std::string& model_id, std::int64_t seq_id, const OptimStepCall& call);
  void run(const std::string& model_id, std::int64_t seq_id, SaveWeights& call);
  void run(const std::string& model_id, std::int64_t seq_id, const LoadWeights& call);
  void run(const std::string& model_id, std::int64_t seq_id, const RefusedCall& call);
  void finish(const std::string& model_id, std::int64_t seq_id, FutureResult result);
  void finish(const std::string& model_id, std::int64_t seq_id, const Json::Object& result);
  void fail_turn(const std::string& model_id, std::int64_t seq_id, const Status& status);

  // service_memory.cpp
  /// Returns the memory of the snapshot that `save` asks for; 0 if `save` is null or names a
  /// checkpoint.
  [[nodiscard]] std::size_t snapshot_bytes_of(const Model& model, const SaveWeights* save) const;
  [[nodiscard]] std::vector<Removable> silent_sessions(const std::string& tenant);
  [[nodiscard]] std::vector<Removable> idle_snapshots(const std::string& session_id);
  /// Makes room for `models` models and `bytes` bytes of a tenant. Ends as few of `removable` as
  /// needed, in order. If even all of them would not suffice, ends none and returns false.
  [[nodiscard]] bool make_room(const std::string& tenant, std::size_t models, std::size_t bytes,
                               const std::vector<Removable>& removable);
  /// Returns what is left for a tenant, and what its models and snapshots take, as a part of a
  /// sentence.
  [[nodiscard]] std::string memory_text(const std::string& tenant) const;
  /// Responds that there is no room because of `fact`, and when to ask again.
  void fail_without_room(ExchangeId exchange, const std::string& tenant, const std::string& fact,
                         const std::string& param);

  // service_sampling.cpp
  void add_sampler(const std::string& id, Sampler sampler);
  void end_sampler(const std::string& id);
  /// Returns the id of the new sampler. Errors: `kInvalidArgument` if its number has been used.
  Result<std::string> add_snapshot_sampler(const NewSnapshot& request, engines::Snapshot snapshot);
  void use_adapter(const std::string& name, std::function<void(Status)> then);
  void publish(const std::string& name);
  void on_published(const std::string& name, const Status& status);
  bool unload_idle(std::size_t kept);
  void drop_unused_adapter(const std::string& name);
  void release_adapter(const std::string& name);
  /// Unloads the adapter of this checkpoint, so that the next request that samples from it reads
  /// the checkpoint again. An adapter that is being published is read again before its requests
  /// run. Running requests keep the old weights.
  void forget_published(const CheckpointPath& path);
  void generate(const std::string& request_id);
  void on_sample(const std::string& request_id, std::size_t index,
                 Result<engines::RolloutResult> result);
  void end_sampling(const std::string& request_id, FutureResult result);
  void drop_sampling(const std::string& request_id);
  [[nodiscard]] Json completions_of(const Sampler& sampler, std::int64_t clone,
                                    std::int64_t previous) const;

  // service_checkpoints.cpp
  void store_checkpoint(const std::string& tenant, CheckpointInfo info, JobState state,
                        std::vector<AgeRecipient> recipients, std::function<void(Status)> done);
  void read_checkpoint(const std::string& tenant, const CheckpointPath& path, bool with_optimizer,
                       std::function<void(Result<JobState>)> done);
  void remove_checkpoint(const std::string& tenant, const CheckpointPath& path,
                         std::function<void(Status)> done);
  void drop_expired();
  /// Logs a problem of the store.
  void warn(const std::string& message) const;
  /// Returns a token for the files of a checkpoint, or nullopt if too many checkpoints have tokens.
  [[nodiscard]] std::optional<std::string> take_token(const CheckpointPath& path,
                                                      const std::string& tenant);
  void touch_run(Model& model);
  void forget_old_runs();
  void add_damaged(const std::vector<DamagedEntry>& entries);
  /// If an entry of the store is damaged, responds with an error and returns true.
  bool refuse_if_damaged(ExchangeId exchange, const std::string& id);
  /// Returns whether the checkpoints are known; otherwise responds with an error.
  bool require_listing(ExchangeId exchange);
  [[nodiscard]] const CheckpointInfo* find_checkpoint(const CheckpointPath& path) const;
  /// Returns a checkpoint, or responds with an error and returns null.
  const CheckpointInfo* find_checkpoint(ExchangeId exchange, const CheckpointPath& path);
  [[nodiscard]] Json to_json(const CheckpointInfo& info) const;
  [[nodiscard]] Json to_json(const RunInfo& run) const;

  ServiceDeps deps_;
  FutureTable futures_;
  std::map<std::string, Session> sessions_;
  std::map<std::string, Model> models_;
  std::map<std::string, Sampler> samplers_;
  std::map<std::string, Adapter> adapters_;
  std::map<std::string, Sampling> sampling_;
  std::vector<Poll> polls_;
  std::map<CheckpointPath, CheckpointInfo> checkpoints_;
  std::map<CheckpointPath, int> writing_;  // queued or running writes of checkpoints
  std::map<std::string, RunInfo> runs_;
  std::map<std::string, std::string> damaged_;  // why entries of the store cannot be read, by id
  std::set<std::string> unstored_runs_;         // whose last write has failed
  std::map<std::string, UrlGrant> url_grants_;  // by token
  bool listed_ = false;
  std::optional<ApiError> list_failure_;
  TimePoint next_removal_{};  // no expired checkpoint is removed before
  std::uint64_t last_sample_ = 0;
  std::uint64_t last_job_ = 0;
  std::uint64_t last_use_ = 0;
  FairLimit open_url_grants_;
  FairLimit open_sessions_;
  FairLimit open_models_;  // including jobs that the backend opens for models that have ended
  FairLimit model_bytes_;  // of those models, and of snapshots
  FairLimit running_samples_;
  FairLimit waiting_bytes_;
};

/// Returns the id of a request's future: the same if the client sends the request again.
[[nodiscard]] std::string future_id(const std::string& owner, std::int64_t seq_id);

}  // namespace tidemill::actors::tinker
