// SPDX-License-Identifier: Apache-2.0
// How the bytes of buffers get from one process to another: the interfaces of both sides.
//
// A message carries the identities of buffers; see base/buffer.hpp. Before it is sent, a
// `BufferLender` makes the bytes available to the receiving process. There, a `BufferResolver`
// turns each identity into a handle that holds the bytes. segment_buffers.hpp implements both over
// shared memory.
#pragma once

#include "base/buffer.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::actors {

/// Makes buffers available to one other process, the reader.
///
/// Threads: safe to call concurrently. A call may take as long as copying the buffer.
class BufferLender {
public:
  BufferLender() = default;
  BufferLender(const BufferLender&) = delete;
  BufferLender& operator=(const BufferLender&) = delete;
  virtual ~BufferLender() = default;

  /// Permits the reader to resolve `buffer` once. Returns a handle with the identity that the
  /// reader can resolve. A buffer that is not in the lender's pool is copied there; the copy is
  /// used again as long as a handle from `lend` exists. Requires a resolved buffer that is not
  /// empty.
  /// Errors: `kResourceExhausted` if there is no room now; otherwise those of
  /// `transport::SegmentPool::lend`.
  [[nodiscard]] virtual Result<Buffer> lend(const Buffer& buffer) = 0;

  /// Undoes a `lend`, given its result. Requires that the message was not sent.
  virtual void take_back(const Buffer& lent) = 0;
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

  /// Returns a handle that holds the bytes of a buffer, and its loan until the handle is dropped.
  /// Errors: those of `transport::SegmentReader::resolve`.
  [[nodiscard]] virtual Result<Buffer> resolve(const BufferIdentity& identity) = 0;
};

/// Lends all of `tensors`. Returns the same tensors with buffers that the reader can resolve. A
/// call that fails lends nothing. Requires resolved tensors.
/// Errors, naming the tensor: those of `BufferLender::lend`.
[[nodiscard]] Result<TensorMap> lend(BufferLender& lender, const TensorMap& tensors);

/// Undoes a `lend`, given its result. Requires that the message was not sent.
void take_back(BufferLender& lender, const TensorMap& lent);

/// Replaces the buffers of all tensors by handles that hold the bytes. Uses the loans of all
/// tensors even if one of them cannot be resolved.
/// Errors, naming the tensor: those of `BufferResolver::resolve`; `kCorruptData` if the bytes are
/// not aligned for their type.
[[nodiscard]] Status resolve(BufferResolver& resolver, TensorMap& tensors);

}  // namespace tidemill::actors
