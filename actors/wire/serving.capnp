# SPDX-License-Identifier: Apache-2.0
# The messages of `ServingActor`. See common.capnp about changes.
@0xd3f0a9c15b7e2846;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tidemill::actors::wire");
using Common = import "common.capnp";

struct LogitBias {
  token @0 :Int32;
  bias @1 :Float32;
}

struct SamplingOptions {
  temperature @0 :Float32;
  topK @1 :Int32;
  topP @2 :Float32;
  minP @3 :Float32;
  repetitionPenalty @4 :Float32;
  frequencyPenalty @5 :Float32;
  presencePenalty @6 :Float32;
  logitBias @7 :List(LogitBias);
}

# Without a constraint, which does not leave its process.
struct RolloutRequest {
  id @0 :UInt64;
  promptIds @1 :List(Int32);
  sampling @2 :SamplingOptions;
  seed @3 :UInt64;
  drawKey @4 :UInt64;
  hasDrawKey @5 :Bool;
  maxNewTokens @6 :Int32;
  stopIds @7 :List(Int32);
  stopStrings @8 :List(Text);
  adapter @9 :Text;
  minStep @10 :UInt64;
  timeLimitNs @11 :Int64;
  keepRows @12 :Bool;
  promptLogprobs @13 :Bool;
  topLogprobs @14 :Int32;
  promptTopLogprobs @15 :Int32;
  promptLogits @16 :Bool;
  priority @17 :UInt16;
  tenant @18 :Text;
  cacheSalt @19 :Text;
}

struct VersionSpan {
  line @0 :UInt32;
  incarnation @1 :UInt32;
  step @2 :UInt64;
  numTokens @3 :UInt32;
}

struct TokenLogprob {
  token @0 :Int32;
  logprob @1 :Float32;
}

struct RolloutResult {
  id @0 :UInt64;
  responseIds @1 :List(Int32);
  behaviorLogprobs @2 :List(Float32);
  versions @3 :List(VersionSpan);
  finishReason @4 :UInt16;
  error @5 :Text;
  promptLogprobs @6 :List(Float32);
  promptLogits @7 :List(Float32);
  topLogprobs @8 :List(TokenLogprob);
  promptTopLogprobs @9 :List(TokenLogprob);
  cachedTokens @10 :Int64;
}

struct CancelRequest {
  id @0 :UInt64;
}

struct Tensor {
  name @0 :Text;
  dtype @1 :UInt16;
  shape @2 :List(Int64);
  buffer @3 :Common.BufferIdentity;
}

# `base` is empty if the receiver has loaded the base of this digest.
struct Snapshot {
  version @0 :Common.PolicyVersion;
  baseDigest @1 :Text;
  adapterDigest @2 :Text;
  base @3 :List(Tensor);
  adapter @4 :List(Tensor);
}

struct AdapterRequest {
  action @0 :UInt16;
  name @1 :Text;
  path @2 :Text;
  version @3 :Common.PolicyVersion;
  config @4 :Text;
  tensors @5 :List(Tensor);
  created @6 :Int64;
}

struct LoadedAdapter {
  name @0 :Text;
  version @1 :Common.PolicyVersion;
  sizeBytes @2 :Int64;
  numRequests @3 :Int64;
  created @4 :Int64;
}

struct AdapterList {
  adapters @0 :List(LoadedAdapter);
}

struct StartDevice {
  kvBytes @0 :Int64;
  rolloutRows @1 :Int64;
  sampledRows @2 :Int64;
  segments @3 :Common.SegmentAddress;
}
