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

# Sent in place of a reply when a request has failed, by either process. `code` is the number of an
# Errc, never 0.
struct Failure {
  code @0 :UInt16;
  message @1 :Text;
}

struct PolicyVersion {
  line @0 :UInt32;
  incarnation @1 :UInt32;
  step @2 :UInt64;
}

# Names bytes that the sender has lent to the receiver.
struct BufferIdentity {
  pool @0 :UInt64;
  segment @1 :UInt64;
  generation @2 :UInt32;
  offset @3 :UInt64;
  length @4 :UInt64;
}

# How a process gets the bytes that the process of the run lends it. `socket` is empty if nothing is
# lent in shared memory.
struct SegmentAddress {
  socket @0 :Text;
  reader @1 :UInt32;
  token @2 :Data;  # 16 bytes
}

# The bytes of a buffer.
struct Bytes {
  dtype @0 :UInt16;
  data @1 :Data;
}
