// SPDX-License-Identifier: Apache-2.0
// The protocol of the recorder.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/recorder/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// RECORDER: appends to a run's record files and shows its progress.
using RecorderActor = caf::typed_actor<
    // Writes one step down. Answers the files' sizes once it is in them. Fails with what the file
    // system says; the files then end with a whole line.
    caf::replies_to<atom::record, StepRecord>::with<RecordMarks>,
    // Answers the files' sizes.
    caf::replies_to<atom::capture>::with<RecordMarks>,
    // A piece of work that the recorder handed to its port has run.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
