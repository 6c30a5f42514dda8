// SPDX-License-Identifier: Apache-2.0
// Spawns the actor that keeps and runs fine-tuning jobs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/tuning/handles.hpp"
#include "actors/tuning/tuning_run.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "storage/jobs/job_store.hpp"

namespace tidemill::actors {

/// TUNER: a `TuningActor` that its owner starts and stops.
using TunerActor = TuningActor::extend<
    // Continues the jobs that have not ended, and has the device serve the adapters of those that
    // have succeeded, newest first, until its memory for adapters is full.
    caf::reacts_to<atom::start>,
    // Stops all runs and ends once they have ended, which takes little more than
    // `TunerDeps::stop_time`. Their jobs stay as they are, and continue when a server opens the
    // same store.
    caf::reacts_to<atom::stop>,
    // A run has reported something, or a deadline of the actor is due.
    caf::reacts_to<atom::wake>,
    // The port has run a piece of work.
    caf::reacts_to<atom::worked, std::uint64_t>>;

/// Dependencies of a tuner.
struct TunerDeps {
  std::shared_ptr<storage::JobStore> jobs;
  WorkPort* port = nullptr;  // runs all calls of the store; outlives the tuner
  DeviceActor device;        // serves the adapters of jobs that have succeeded
  /// Fills in what a client's request leaves open, before `check`. May be empty.
  std::function<storage::JobSpec(storage::JobSpec)> complete;
  /// Checks a client's request beyond its form. Called at the port. The message of an error begins
  /// with the field.
  std::function<Status(const storage::JobSpec&)> check;
  StartTuningRun start_run;
  /// Returns the name under which clients request the model of a job.
  std::function<std::string(const storage::JobRecord&)> model_name;
  /// Returns the directory of the adapter of a job that has succeeded.
  std::function<std::string(const storage::JobRecord&)> adapter_path;
  /// Removes files of jobs that are no longer needed, but none of the jobs `running`. Called at the
  /// port when the tuner starts, and whenever a run has ended or a model has been deleted. May be
  /// empty.
  std::function<Status(storage::JobStore&, const std::set<std::string>& running)> remove_leftovers;
  /// How long a stopping run may take to complete its step and commit. Then it is cancelled.
  Duration stop_time = std::chrono::seconds(30);
  std::size_t max_running = 1;  // further jobs wait, in the order in which they were created
  std::function<std::int64_t()> unix_time;      // seconds
  std::function<void(const std::string&)> log;  // takes one line
};

/// Spawns a tuner. It ends if the device does.
[[nodiscard]] TunerActor spawn_tuner(caf::actor_system& system, TunerDeps deps);

}  // namespace tidemill::actors
