// SPDX-License-Identifier: Apache-2.0
// The protocols of a stream: as its producers see it, as its consumers see it, and as a whole.
#pragma once

#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/stream/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// STREAM PRODUCER: the stream as its producers see it. It takes new groups.
using StreamProducerActor = caf::typed_actor<
    // Puts one group. Replies once the group is in the stream, and not while the byte limit is
    // reached (back-pressure). Fails with `kInvalidArgument` if the group is incomplete or not new;
    // the stream then keeps no row of it.
    caf::replies_to<atom::put, NewGroup>::with<storage::Settlement>,
    // No more groups will follow.
    caf::reacts_to<atom::finish>>;

/// STREAM CONSUMER: the stream as its consumers see it. It leases the rows of a task and takes
/// their results.
using StreamConsumerActor = caf::typed_actor<
    // Leases rows. Replies when `min_units` are ready, or with no rows after `wait`. Fails at once
    // with `kInvalidArgument` for an unknown task or for numbers of units that no lease can have.
    caf::replies_to<atom::lease, LeaseRequest>::with<LeaseReply>,
    // Writes output columns and acknowledges the rows in one step. Every refusal carries the lease.
    // A row is refused alone. If its cells are invalid, its delivery counts as failed: the row
    // becomes ready again, or fails after too many. All other refused rows stay unchanged.
    caf::replies_to<atom::ack, AckRequest>::with<storage::Settlement>,
    // Gives rows back. They become ready again at their old position in the order. If they are
    // given back as failed too often, they fail.
    caf::replies_to<atom::nack, LeaseUpdate>::with<storage::Settlement>,
    // Extends the leases of rows that the consumer is still working on, and stores their progress.
    caf::replies_to<atom::renew, LeaseUpdate>::with<storage::Settlement>,
    // Retires a group for all tasks. Unknown and retired groups are ignored.
    caf::replies_to<atom::retire, GroupVerdict>::with<storage::Settlement>>;

/// STREAM: the table between the stages of a run.
using StreamActor = StreamProducerActor::extend_with<StreamConsumerActor>::extend<
    // The policy has reached this step. Staleness is measured against it from now on.
    caf::reacts_to<atom::publish, std::uint64_t>,
    // Takes back the leases of a consumer that has terminated, and removes its pending requests.
    caf::reacts_to<atom::release, std::string>,
    // Replies with all rows, without copying their cells.
    caf::replies_to<atom::capture>::with<StreamCapture>,
    // Replies with the counts.
    caf::replies_to<atom::status>::with<StreamStatus>,
    // Looks for leases that have expired and requests whose wait is over. The stream sends this to
    // itself.
    caf::reacts_to<atom::wake>>;

}  // namespace tidemill::actors
