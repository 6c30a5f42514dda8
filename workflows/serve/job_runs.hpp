// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. Carries out fine-tuning jobs as runs on the device of the server.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include <caf/fwd.hpp>

#include "actors/tuning/stores.hpp"
#include "actors/tuning/tuning_run.hpp"
#include "base/clock.hpp"
#include "base/files/file.hpp"
#include "workflows/serve/job_memory.hpp"
#include "workflows/serve/run_serve.hpp"
#include "workflows/shared_job.hpp"

namespace tidemill::workflows {

/// What the runs of jobs share. References are borrowed until the last run has ended.
struct JobRunDeps {
  caf::actor_system& system;
  const Clock& clock;
  FileSystem& files;
  const ServeOptions& server;
  std::string model;  // the name of the served model
  std::shared_ptr<storage::FileStore> store;
  std::shared_ptr<storage::JobStore> jobs;
  SharedDevice device;            // without its public name
  std::int64_t memory_bytes = 0;  // that a run may take besides the server's
  std::int64_t max_tokens = 0;    // of a sequence (`max_job_tokens`)
  ParseRun parse_run;
  std::function<void(const std::string&)> log;  // takes one line; may be called from any thread
};

/// Returns a function that starts the run of a job on a thread of its own. The run goes on from its
/// last commit if it has one.
[[nodiscard]] actors::StartTuningRun make_job_runs(JobRunDeps deps);

/// What `check_job` knows about the server.
struct JobCheck {
  const ServeOptions& server;
  std::string model;                 // the name of the served model
  const engines::ModelFiles& files;  // of the served model
  std::shared_ptr<storage::FileStore> store;
  ParseRun parse_run;
  JobShare share;
};

/// Checks what a client asks for, as `actors::TunerDeps::check` does. Counts the lines of the
/// training file, and reads nothing else of it.
[[nodiscard]] Status check_job(const JobCheck& check, const storage::JobSpec& spec);

}  // namespace tidemill::workflows
