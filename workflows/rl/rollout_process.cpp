// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rollout_process.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/data/text_codec.hpp"
#include "actors/device/spawn.hpp"
#include "actors/remote/remote_device.hpp"
#include "actors/remote/segment_buffers.hpp"
#include "actors/work/work_port.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "transport/segments/segment_reader.hpp"
#include "workflows/model_run.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/processes/worker_process.hpp"
#include "workflows/rl/role_devices.hpp"
#include "workflows/rl/rollout_plan.hpp"
#include "workflows/rl/rollout_role.hpp"

namespace tidemill::workflows {
namespace {

// The device of the process, and the role of its workers, once the device is open. The host of the
// device writes it, and that of the workers reads it.
struct OpenRole {
  std::mutex mutex;
  actors::ServingActor device;
  RolloutRoleOptions role;
};

// What the device of the process uses.
struct ProcessEngines {
  std::unique_ptr<engines::ModelRuntime> runtime;
  std::shared_ptr<transport::SegmentReader> segments;  // null: nothing is lent in shared memory
};

class RolloutHost {
public:
  RolloutHost(const RlOptions& options, const RolloutProcess& process, actors::WorkPort& port)
      : options_(options), process_(process), port_(port) {}

  // Prepares the process; see `PrepareProcess`.
  MakeWorker prepare(const WorkerConnections& connections) {
    actors::DeviceHostDeps deps;
    deps.port = connections.port;
    deps.work = &port_;
    deps.open = [this, &system = connections.system, open = open_](
                    const actors::StartDevice& start) { return open_device(system, start, *open); };
    deps.on_open = [open = open_](const actors::ServingActor& device) {
      const std::lock_guard lock(open->mutex);
      open->device = device;
    };
    actors::spawn_device_host(connections.system, std::move(deps));
    return [open = std::exchange(open_, nullptr), connections](
               const std::string& kind, std::uint32_t number) -> Result<actors::WorkerSpec> {
      const std::lock_guard lock(open->mutex);
      if (!open->device) {
        return Status(Errc::kUnavailable, "the process has not opened its device");
      }
      const WorkerFactory factory = rollout_worker_factory(connections.system, open->role,
                                                           {connections.stream, open->device});
      if (kind != factory.kind) {
        return Status(Errc::kNotFound, "a rollout process has no workers of kind " + kind);
      }
      return factory.make(number);
    };
  }

private:
  // Opens the model, and connects to the memory that the run lends.
  Result<actors::OpenedDevice> open_device(caf::actor_system& system,
                                           const actors::StartDevice& start, OpenRole& open) const {
    TIDEMILL_ASSIGN_OR_RETURN(
        const TrainedModel model,
        open_trained_model(options_.model, options_.train.common, options_.run.seed));
    TIDEMILL_ASSIGN_OR_RETURN(actors::TextCodec codec,
                              actors::TextCodec::load(options_.model.path, process_.started,
                                                      chat_options(options_.data)));
    const auto engines = std::make_shared<ProcessEngines>();
    TIDEMILL_ASSIGN_OR_RETURN(engines->runtime,
                              engines::open_runtime(model.files, runtime_for(start, model, codec)));
    // Has the runtime find its base by its digest: if an adapter is trained, only the first
    // snapshot of an incarnation has a base. Without one, the first snapshot need not be laid out.
    (void)engines->runtime->initial();
    actors::OpenedDevice opened;
    if (!start.segments.socket.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(engines->segments, transport::SegmentReader::connect(
                                                       actors::reader_options(start.segments)));
      opened.buffers = actors::make_segment_resolver(engines->segments);
    }
    {
      const std::lock_guard lock(open.mutex);
      open.role = rollout_role_options(options_, model);
    }
    opened.spawn = [&system, engines, config = model.files.config, port = &port_] {
      ServingEngines serving;
      serving.rollout = &engines->runtime->rollout();
      serving.adapters = &engines->runtime->adapters();
      serving.open_adapter = [config](const actors::AdapterRequest& request) {
        return open_requested_adapter(request, config);
      };
      return actors::ServingActor(
          actors::spawn_device(system, serving_deps(serving, engines, port)));
    };
    return opened;
  }

  engines::RuntimeOptions runtime_for(const actors::StartDevice& start, const TrainedModel& model,
                                      const actors::TextCodec& codec) const {
    MemoryBudgets budgets;
    budgets.kv_bytes = start.kv_bytes;
    budgets.limits.rollout_rows = start.rollout_rows;
    budgets.limits.sampled_rows = start.sampled_rows;
    engines::RuntimeOptions runtime = rollout_runtime_options(options_, model, budgets);
    runtime.token_text = [codec](std::int32_t id) {
      return std::string(codec.tokenizer().token_bytes(id));
    };
    return runtime;
  }

  const RlOptions& options_;
  const RolloutProcess& process_;
  actors::WorkPort& port_;
  std::shared_ptr<OpenRole> open_ = std::make_shared<OpenRole>();
};

}  // namespace

Status run_rollout_process(const RlOptions& options, const RolloutProcess& process) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<actors::WorkPort> port, start_port("device"));
  RolloutHost host(options, process, *port);
  return run_worker_process(
      process.address,
      [&host](const WorkerConnections& connections) { return host.prepare(connections); },
      process.stop);
}

}  // namespace tidemill::workflows
