// SPDX-License-Identifier: Apache-2.0
// Every type that travels in a message. Names are what crosses the wire: never rename one.
#pragma once

#include <string>
#include <vector>

#include <caf/type_id.hpp>

#include "actors/device/messages.hpp"
#include "actors/evaluator/messages.hpp"
#include "actors/keeper/messages.hpp"
#include "actors/recorder/messages.hpp"
#include "actors/stream/messages.hpp"
#include "actors/trainer/messages.hpp"
#include "base/ids.hpp"

CAF_BEGIN_TYPE_ID_BLOCK(tidemill_types, caf::first_custom_type_id)
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::SampleId))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::PolicyVersion))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::engines::RolloutRequest))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::engines::RolloutResult))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::engines::Snapshot))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::storage::PlaceChanges))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::storage::Settlement))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::TrainJob))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::TrainOutcome))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::OptimizerState))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::NewGroup))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::LeaseRequest))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::LeaseReply))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::Completion))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::Return))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::GroupVerdict))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::StreamImage))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::StreamStatus))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::AdmissionRequest))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::Admission))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::KeeperStatus))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::StepRecord))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::RecordMarks))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::EvalReport))
  CAF_ADD_TYPE_ID(tidemill_types, (tidemill::actors::RunSummary))
CAF_END_TYPE_ID_BLOCK(tidemill_types)
