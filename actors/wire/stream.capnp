# SPDX-License-Identifier: Apache-2.0
# The messages of `StreamConsumerActor`. See common.capnp about changes.
@0xb0d90bba1c6e8f52;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tidemill::actors::wire");
using Common = import "common.capnp";

struct Lease {
  row @0 :UInt64;
  incarnation @1 :UInt32;
  generation @2 :UInt64;
}

struct SampleRow {
  id @0 :UInt64;
  group @1 :UInt64;
  indexInGroup @2 :UInt32;
  groupSize @3 :UInt32;
  epoch @4 :UInt64;
  dataPosition @5 :UInt64;
  minStep @6 :UInt64;
}

# A fact that was not reported has the largest value. A row without facts has both.
struct RowFacts {
  oldestStep @0 :UInt64 = 0xffffffffffffffff;
  tokens @1 :UInt64 = 0xffffffffffffffff;
}

# `value` holds the bytes. If `lent` is set, the bytes are lent instead, and `value` holds only
# their type. Only rows leased with `inPlace` have lent cells.
struct Cell {
  column @0 :UInt32;
  value @1 :Common.Bytes;
  lent @2 :Common.BufferIdentity;
}

struct LeasedRow {
  row @0 :SampleRow;
  lease @1 :Lease;
  deliveries @2 :UInt32;
  facts @3 :RowFacts;
  cells @4 :List(Cell);
}

struct HeldRow {
  lease @0 :Lease;
  cells @1 :List(Cell);
  facts @2 :RowFacts;
}

struct LeaseRequest {
  task @0 :UInt32;
  consumer @1 :Text;
  maxUnits @2 :UInt32;
  minUnits @3 :UInt32;
  beforeGroup @4 :UInt64;
  waitNs @5 :UInt64;
  inPlace @6 :Bool;  # the sender reads lent cells
}

struct LeaseReply {
  rows @0 :List(LeasedRow);
  leaseTimeNs @1 :UInt64;
  waitingFor @2 :Text;
  ended @3 :Bool;
  whole @4 :Bool;
}

struct AckRequest {
  task @0 :UInt32;
  consumer @1 :Text;
  rows @2 :List(HeldRow);
}

# Of nack and of renew.
struct LeaseUpdate {
  task @0 :UInt32;
  consumer @1 :Text;
  rows @2 :List(HeldRow);
  release @3 :UInt16;
  reason @4 :Text;
}

struct GroupVerdict {
  group @0 :UInt64;
  kind @1 :UInt16;
  reason @2 :Text;
}

struct RefusedRow {
  lease @0 :Lease;
  reason @1 :UInt16;
  detail @2 :Text;
}

struct Settlement {
  done @0 :List(UInt64);
  refused @1 :List(RefusedRow);
}
