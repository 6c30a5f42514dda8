# SPDX-License-Identifier: Apache-2.0
# The messages with which the process of the run controls the workers of another process. See
# common.capnp about changes.
@0x8d51c3f2a6be7d19;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tidemill::actors::wire");
using Common = import "common.capnp";

struct StartWorker {
  name @0 :Text;
  kind @1 :Text;
  number @2 :UInt32;
  start @3 :UInt64;
}

# Of drain and of stop.
struct StartedWorker {
  name @0 :Text;
  start @1 :UInt64;
}

struct WorkerEnded {
  name @0 :Text;
  code @1 :UInt16;  # 0: it has ended as it was asked to
  reason @2 :Text;
  start @3 :UInt64;
}

# A process that ignores it gets its rows in messages.
struct RowMemory {
  segments @0 :Common.SegmentAddress;
}

struct LogLine {
  text @0 :Text;
}
