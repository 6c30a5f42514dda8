# SPDX-License-Identifier: Apache-2.0
# The messages with which the owner of a run controls the workers of another process. See
# common.capnp about changes.
@0x8d51c3f2a6be7d19;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tidemill::actors::wire");

struct StartWorker {
  name @0 :Text;
  kind @1 :Text;
  number @2 :UInt32;
}

# Of drain and of stop.
struct WorkerName {
  name @0 :Text;
}

struct WorkerEnded {
  name @0 :Text;
  code @1 :UInt16;  # 0: it has ended as it was asked to
  reason @2 :Text;
}

struct LogLine {
  text @0 :Text;
}
