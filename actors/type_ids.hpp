// SPDX-License-Identifier: Apache-2.0
// Registers every type that is sent in a message. CAF writes a type's name into serialized
// messages, so a renamed type cannot be read by a program that knows the old name.
#pragma once

#include <caf/deserializer.hpp>
#include <caf/detail/stringification_inspector.hpp>
#include <caf/serializer.hpp>
#include <caf/type_id.hpp>

#include "actors/device/messages.hpp"
#include "actors/evaluator/messages.hpp"
#include "actors/gateway/caller.hpp"
#include "actors/gateway/http/http_message.hpp"
#include "actors/keeper/messages.hpp"
#include "actors/recorder/messages.hpp"
#include "actors/router/messages.hpp"
#include "actors/stream/messages.hpp"
#include "actors/supervisor/messages.hpp"
#include "actors/trainer/messages.hpp"
#include "base/ids.hpp"
#include "engines/reward_engine.hpp"
#include "storage/jobs/job_record.hpp"

/// Calls `X(namespace, type)` for each message type.
#define TIDEMILL_MESSAGE_TYPES(X)         \
  X(tidemill, SampleId)                   \
  X(tidemill, JobId)                      \
  X(tidemill, PolicyVersion)              \
  X(tidemill::engines, RewardRequest)     \
  X(tidemill::engines, RewardResult)      \
  X(tidemill::engines, RolloutRequest)    \
  X(tidemill::engines, RolloutResult)     \
  X(tidemill::engines, Snapshot)          \
  X(tidemill::engines, UpdateReport)      \
  X(tidemill::storage, SlotChanges)       \
  X(tidemill::storage, Settlement)        \
  X(tidemill::storage, RecordMarks)       \
  X(tidemill::storage, JobSpec)           \
  X(tidemill::storage, JobRecord)         \
  X(tidemill::storage, PageQuery)         \
  X(tidemill::storage, JobPage)           \
  X(tidemill::storage, JobEventPage)      \
  X(tidemill::storage, JobCheckpointPage) \
  X(tidemill::actors, TrainRequest)       \
  X(tidemill::actors, TrainOutcome)       \
  X(tidemill::actors, PassOutcome)        \
  X(tidemill::actors, OptimizerState)     \
  X(tidemill::actors, TrainingState)      \
  X(tidemill::actors, AdapterRequest)     \
  X(tidemill::actors, AdapterList)        \
  X(tidemill::actors, QuarantinedDevice)  \
  X(tidemill::actors, NewGroup)           \
  X(tidemill::actors, LeaseRequest)       \
  X(tidemill::actors, LeaseReply)         \
  X(tidemill::actors, AckRequest)         \
  X(tidemill::actors, LeaseUpdate)        \
  X(tidemill::actors, GroupVerdict)       \
  X(tidemill::actors, StreamCapture)      \
  X(tidemill::actors, StreamStatus)       \
  X(tidemill::actors, AdmissionRequest)   \
  X(tidemill::actors, Admission)          \
  X(tidemill::actors, KeeperStatus)       \
  X(tidemill::actors, DeviceStatus)       \
  X(tidemill::actors, DeviceJoin)         \
  X(tidemill::actors, StepRecord)         \
  X(tidemill::actors, EvalReport)         \
  X(tidemill::actors, WorkerStatus)       \
  X(tidemill::actors, WorkerList)         \
  X(tidemill::actors, RunSummary)         \
  X(tidemill::actors, TokenBatch)         \
  X(tidemill::actors, DeviceUsage)        \
  X(tidemill::actors, StartWorker)        \
  X(tidemill::actors, HttpRequest)        \
  X(tidemill::actors, Caller)

CAF_BEGIN_TYPE_ID_BLOCK(tidemill_types, caf::first_custom_type_id)
#define TIDEMILL_ADD_TYPE_ID(ns, type) CAF_ADD_TYPE_ID(tidemill_types, (ns::type))
  TIDEMILL_MESSAGE_TYPES(TIDEMILL_ADD_TYPE_ID)
#undef TIDEMILL_ADD_TYPE_ID
CAF_END_TYPE_ID_BLOCK(tidemill_types)

// Sending a message needs all three versions of `inspect`. `message_types.cpp` instantiates them.
#define TIDEMILL_INSPECT(specifier, ns, type)                               \
  specifier template caf::error ns::inspect(caf::serializer&, ns::type&);   \
  specifier template caf::error ns::inspect(caf::deserializer&, ns::type&); \
  specifier template void ns::inspect(caf::detail::stringification_inspector&, ns::type&);
#define TIDEMILL_EXTERN_INSPECT(ns, type) TIDEMILL_INSPECT(extern, ns, type)
TIDEMILL_MESSAGE_TYPES(TIDEMILL_EXTERN_INSPECT)
#undef TIDEMILL_EXTERN_INSPECT

namespace caf {
class actor_system_config;
}

namespace tidemill::actors {

/// Registers the types with an actor system. Call it before the system sends its first message.
void add_message_types(caf::actor_system_config& config);

}  // namespace tidemill::actors
