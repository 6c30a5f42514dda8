// SPDX-License-Identifier: Apache-2.0
// The protocols of a stream: one role for producers, one for consumers, and the whole.
#pragma once

#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/stream/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// STREAM PRODUCER: takes new groups.
using StreamProducerActor = caf::typed_actor<
    // Puts one group. Answers once it is in; waits while the byte limit is reached (back-pressure).
    // Fails with `kInvalidArgument` for what is no whole, new group; nothing of it stays then.
    caf::replies_to<atom::put, NewGroup>::with<storage::Settlement>,
    // No group will follow.
    caf::reacts_to<atom::finish>>;

/// STREAM CONSUMER: hands out rows of a task and takes their results.
using StreamConsumerActor = caf::typed_actor<
    // Leases rows. Answers when `min_units` are ready, or empty-handed after `wait`. Fails at once
    // with `kInvalidArgument` for an unknown task or numbers that no lease can have.
    caf::replies_to<atom::lease, LeaseRequest>::with<LeaseReply>,
    // Writes output columns and acknowledges in one step. Refused rows are unchanged.
    caf::replies_to<atom::ack, Completion>::with<storage::Settlement>,
    // Gives rows back: ready again at their old place, or failed after too many deliveries.
    caf::replies_to<atom::nack, Return>::with<storage::Settlement>,
    // Extends the leases of rows still being worked on.
    caf::replies_to<atom::renew, Return>::with<storage::Settlement>,
    // Retires a group for all tasks. Unknown or retired groups are ignored.
    caf::replies_to<atom::retire, GroupVerdict>::with<storage::Settlement>>;

/// STREAM: the table between the stages of a run.
using StreamActor = StreamProducerActor::extend_with<StreamConsumerActor>::extend<
    // The policy is at this step now: staleness is judged against it.
    caf::reacts_to<atom::publish, std::uint64_t>,
    // Takes back the leases of a consumer that has died, and forgets what it waited for.
    caf::reacts_to<atom::release, std::string>,
    // Answers all rows as a checkpoint keeps them.
    caf::replies_to<atom::capture>::with<StreamImage>,
    // Answers the counts.
    caf::replies_to<atom::status>::with<StreamStatus>,
    // Time to look for expired leases and waits.
    caf::reacts_to<atom::wake>>;

}  // namespace tidemill::actors
