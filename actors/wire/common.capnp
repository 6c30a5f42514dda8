# SPDX-License-Identifier: Apache-2.0
# What the messages of several protocols contain. messages.hpp says which types they carry.
#
# Compatibility, of all schemas of this folder: a field may be added at the end if a program that
# ignores it stays right, and if its default value means what its absence meant. Any other change
# gives the message a new kind. No field is removed, renumbered or given another type. Numbers of
# enumerations are those of the C++ types and never change.
@0xe1b5a1d2c7f04c31;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tidemill::actors::wire");

# A worker process sends a failure in place of a reply.
struct Failure {
  code @0 :UInt16;
  message @1 :Text;
}

struct PolicyVersion {
  line @0 :UInt32;
  incarnation @1 :UInt32;
  step @2 :UInt64;
}

# The bytes of a buffer.
struct Bytes {
  dtype @0 :UInt16;
  data @1 :Data;
}
