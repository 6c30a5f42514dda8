// SPDX-License-Identifier: Apache-2.0
// How the bytes of tensors get from one process to another: the interfaces of both sides.
//
// A message carries the identities of buffers; see base/buffer.hpp. Before it is sent, a
// `BufferLender` makes the bytes available to the receiving process. There, a `BufferResolver`
// turns each identity into a handle that holds the bytes. segment_buffers.hpp implements both over
// shared memory.
#pragma once

#include "base/result.hpp"
#include "base/status.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::actors {

/// Makes tensors available to one other process, the reader.
///
/// Threads: safe to call concurrently. A call may take as long as copying the tensors.
class BufferLender {
public:
  BufferLender() = default;
  BufferLender(const BufferLender&) = delete;
  BufferLender& operator=(const BufferLender&) = delete;
  virtual ~BufferLender() = default;

  /// Permits the reader to resolve each of `tensors` once. Returns the same tensors with buffers
  /// that the reader can resolve. Tensors that are not in shared memory are copied there; a copy
  /// is used again as long as a result of `lend` that has it exists. A call that fails lends
  /// nothing. Requires resolved tensors.
  /// Errors: `kResourceExhausted` if there is no room now; otherwise those of
  /// `transport::SegmentPool::lend`.
  [[nodiscard]] virtual Result<TensorMap> lend(const TensorMap& tensors) = 0;

  /// Undoes a `lend`, given its result. Requires that the message was not sent.
  virtual void take_back(const TensorMap& lent) = 0;
};

/// Turns the identities of buffers that other processes have lent to this one into bytes.
///
/// Threads: safe to call concurrently. A call may wait for the other process.
class BufferResolver {
public:
  BufferResolver() = default;
  BufferResolver(const BufferResolver&) = delete;
  BufferResolver& operator=(const BufferResolver&) = delete;
  virtual ~BufferResolver() = default;

  /// Replaces the buffers of all tensors by handles that hold the bytes. Each handle keeps its
  /// loan until it is dropped. Uses the loans of all tensors even if one of them cannot be
  /// resolved. Errors, naming the tensor: those of `transport::SegmentReader::resolve`;
  /// `kCorruptData` if the bytes are not aligned for their type.
  [[nodiscard]] virtual Status resolve(TensorMap& tensors) = 0;
};

}  // namespace tidemill::actors
