// SPDX-License-Identifier: Apache-2.0
// The protocol of the recorder.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/recorder/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// RECORDER: appends to the record files of a run, and passes every record to an observer.
using RecorderActor = caf::typed_actor<
    // Writes the record of one step. Replies with the sizes of the files once it is in them. Fails
    // with the error of the file system. The files then still end with a whole line.
    caf::replies_to<atom::record, StepRecord>::with<RecordMarks>,
    // Replies with the sizes of the files once all records received before are written.
    caf::replies_to<atom::capture>::with<RecordMarks>,
    // The write that the recorder submitted to its port is done.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
