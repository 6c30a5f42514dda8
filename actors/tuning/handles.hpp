// SPDX-License-Identifier: Apache-2.0
// The protocol of the actor that runs fine-tuning jobs.
#pragma once

#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/type_ids.hpp"
#include "storage/jobs/job_record.hpp"

namespace tidemill::actors {

/// TUNING: keeps the fine-tuning jobs of a server, and runs them. The gateway checks the key and
/// the form of a client's request before it forwards the request to this actor. All requests but
/// `create`, `list` and `remove` name a job, and fail with `kNotFound` if it does not exist. The
/// actor may fail any request with `kUnavailable` while the server stops.
///
/// The gateway waits `kTuningTime` for a reply, so a reply must not wait for a job to make
/// progress. If an error concerns a field of the request, such as `training_file`, its message
/// begins with "FIELD: ".
using TuningActor = caf::typed_actor<
    // Adds a job and queues it, in one step. Once the job is durable, replies with it as it was
    // added, in state `kValidatingFiles`. The rows of its files are checked when its run starts, so
    // a mistake there fails a job that is running. Fails with `kNotFound` if the model or a file
    // does not exist; with `kInvalidArgument` naming the field if the method, the grader or a key
    // of `overrides` cannot be used with the model, or a file has the wrong purpose; with
    // `kResourceExhausted` if there are too many jobs or the disk is full.
    caf::replies_to<atom::create, storage::JobSpec>::with<storage::JobRecord>,
    // Replies with a part of the list of all jobs, or of those with `PageQuery::metadata`, newest
    // first. `PageQuery::job` is empty. Fails with `kNotFound` if `after` does not exist.
    caf::replies_to<atom::list, storage::PageQuery>::with<storage::JobPage>,
    // Replies with a job, as it is now.
    caf::replies_to<atom::get, std::string>::with<storage::JobRecord>,
    // Each asks for a change of the state, and replies with the job once the change is durable.
    // They fail with `kInvalidArgument` if the job's state does not permit the change
    // (`may_follow`): the state of a job that has ended is final. A paused job keeps what it has
    // trained. `resume` queues it. A job whose run finds the disk full is paused, with an event and
    // an error that say so.
    caf::replies_to<atom::cancel, std::string>::with<storage::JobRecord>,
    caf::replies_to<atom::pause, std::string>::with<storage::JobRecord>,
    caf::replies_to<atom::resume, std::string>::with<storage::JobRecord>,
    // Deletes the model of this name that a job has made, and unloads its adapter. Once both are
    // done and durable, replies with the job, which then has no model. Fails with `kNotFound` if no
    // job has made such a model.
    caf::replies_to<atom::remove, std::string>::with<storage::JobRecord>,
    // Each replies with a part of the list of events or checkpoints of the job `PageQuery::job`,
    // newest first. They fail with `kNotFound` also if `after` does not exist.
    caf::replies_to<atom::events, storage::PageQuery>::with<storage::JobEventPage>,
    caf::replies_to<atom::checkpoint, storage::PageQuery>::with<storage::JobCheckpointPage>>;

}  // namespace tidemill::actors
