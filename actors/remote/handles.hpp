// SPDX-License-Identifier: Apache-2.0
// The protocols of the actors through which two processes reach each other's actors.
#pragma once

#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/remote/peer_port.hpp"
#include "actors/stream/handles.hpp"
#include "actors/supervisor/messages.hpp"
#include "actors/type_ids.hpp"
#include "actors/wire/messages.hpp"

namespace tidemill::actors {

/// What the port of a process sends to its actors.
using PeerListenerActor = caf::typed_actor<
    // A message has arrived, or a call has ended.
    caf::reacts_to<atom::deliver, PeerMessagePtr>,
    // The link has ended.
    caf::reacts_to<atom::closed, std::string>>;

/// STREAM PROXY: the stream of another process, as its consumers here see it.
using StreamProxyActor = StreamConsumerActor::extend_with<PeerListenerActor>;

/// WORKER STARTER: starts workers in another process.
using WorkerStarterActor = caf::typed_actor<
    // Starts a worker in the other process, under the consumer name `name`, for the sender. Ends a
    // worker of this name that still runs. Replies once the worker runs. When it ends, the sender
    // gets `atom::stop`, or an exit message with the worker's failure. When the sender ends, the
    // worker is ended. Fails with the failure of the start (see `start_failure`), or with
    // `kTimeout`.
    caf::replies_to<atom::start, StartWorker>::with<WorkerStatus>,
    // Lets the worker of this name finish what it holds and then end.
    caf::reacts_to<atom::drain, std::string>>;

/// WORKER GATE: lets the workers of another process use the stream of this one, and controls them.
/// It ends when the link has ended, with the reason.
using WorkerGateActor = WorkerStarterActor::extend_with<PeerListenerActor>;

/// REMOTE WORKER: stands for a worker of another process. It ends when the worker ends, with the
/// same reason, and with `kUnavailable` when the process does. When it ends, the worker is ended.
using RemoteWorkerActor = caf::typed_actor<
    // Lets the worker finish what it holds and then end. Ends at once if the worker has not
    // started.
    caf::reacts_to<atom::drain>,
    // The worker has ended as it was asked to. Sent by the gate.
    caf::reacts_to<atom::stop>>;

/// WORKER HOST: runs the workers that the process of the run starts here.
using WorkerHostActor = PeerListenerActor::extend<
    // Sends the process of the run a line for the log of the run.
    caf::reacts_to<atom::record, std::string>>;

}  // namespace tidemill::actors
