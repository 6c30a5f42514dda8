# SPDX-License-Identifier: Apache-2.0
# The envelope of every message between two processes of a run. envelope.hpp says what its fields mean.
#
# Compatibility: a field may be added at the end if a program that ignores it stays right. Any other
# change raises `kEnvelopeVersion`. No field is removed, renumbered or given another type.
@0xc5b1f0a7d2936e4b;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tidemill::transport::wire");

struct Envelope {
  version @0 :UInt16;
  kind @1 :UInt16;
  incarnation @2 :UInt32;
  run @3 :UInt64;
  sender @4 :UInt32;
  sequence @5 :UInt64;
  replyTo @6 :UInt64;
  acknowledged @7 :UInt64;
  credit @8 :UInt64;
  deadlineNs @9 :UInt64;
  body @10 :Data;
}
