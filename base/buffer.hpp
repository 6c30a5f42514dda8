// SPDX-License-Identifier: Apache-2.0
// Immutable, reference-counted bytes, which travel between actors without being copied.
//
// A `Buffer` is a handle to a range of an immutable segment: heap memory, a mapped file, or memory
// of a `BufferAllocator`. Copying a handle copies no bytes. Within one process, messages carry the
// handle itself. Serialization writes only the identity of the buffer. A handle that is read back
// is unresolved: it names its bytes but does not hold them, and reading them is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "base/tensor/dtype.hpp"

namespace tidemill {

class ReadableFile;

/// Names a buffer: a segment by (pool, segment, generation), and a range of it. An empty
/// default-constructed buffer has segment 0.
struct BufferIdentity {
  /// What made the segment. 0: this process, which numbers its segments from 1. A pool that several
  /// processes share has a number of its own.
  std::uint64_t pool = 0;
  std::uint64_t segment = 0;     // unique in its pool while the generation is the same
  std::uint32_t generation = 0;  // grows each time a pool uses a segment again; 0 in pool 0
  std::uint64_t offset = 0;      // bytes, from the start of the segment
  std::uint64_t length = 0;      // bytes
  DType dtype = DType::kU8;      // of the elements
  friend bool operator==(const BufferIdentity&, const BufferIdentity&) = default;
};

/// Returns "buffer pool.segment.generation+offset, length bytes", as errors name a buffer.
[[nodiscard]] std::string to_string(const BufferIdentity& identity);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, BufferIdentity& x) {
  return f(x.pool, x.segment, x.generation, x.offset, x.length, x.dtype);
}

/// Where the bytes of a buffer can be read again after their pages are released.
enum class Backing : std::uint8_t { kNone, kFile };

/// A shared, immutable range of bytes.
///
/// Threads: distinct handles to one segment may be used concurrently.
class Buffer {
public:
  /// Makes an empty buffer.
  Buffer() = default;

  /// Copies `bytes` into a new heap segment.
  [[nodiscard]] static Buffer copy_of(std::span<const std::byte> bytes, DType dtype = DType::kU8);

  /// Moves `values` into a new heap segment, without copying the elements.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] static Buffer adopt(std::vector<T> values, DType dtype) {
    TIDEMILL_CHECK(sizeof(T) % dtype_block_bytes(dtype) == 0) << dtype_name(dtype);
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    const auto bytes = std::as_bytes(std::span<const T>(*owner));
    return wrap(std::shared_ptr<const void>(owner, owner->data()), bytes, dtype);
  }

  /// Returns a handle to `bytes`, which `owner` keeps alive and unchanged. If `bytes` is a
  /// read-only private mapping of a whole file, pass that file as `file`; `owner` must keep it
  /// alive too.
  [[nodiscard]] static Buffer wrap(std::shared_ptr<const void> owner,
                                   std::span<const std::byte> bytes, DType dtype,
                                   const ReadableFile* file = nullptr);

  /// Returns a handle to `bytes`, the range of a segment of a pool that `identity` names. `owner`
  /// keeps them alive and unchanged. Requires that `identity` is as long as `bytes`.
  [[nodiscard]] static Buffer of_pool(std::shared_ptr<const void> owner,
                                      std::span<const std::byte> bytes,
                                      const BufferIdentity& identity);

  /// Returns a handle that names bytes but does not hold them, as one that was read from a message.
  /// It is resolved only if `identity` has no bytes.
  [[nodiscard]] static Buffer named(const BufferIdentity& identity);

  /// Returns a handle to the `length` bytes that start at `offset`, as elements of `dtype`.
  /// Requires the range to be inside this buffer. A part of an unresolved handle is unresolved.
  [[nodiscard]] Buffer slice(std::size_t offset, std::size_t length, DType dtype) const;

  /// Tells the system that the bytes will not be needed soon. For a mapped file, drops every page
  /// that overlaps the range, including pages shared with neighboring buffers. The next access
  /// reads them again. Does nothing for heap memory.
  void release_pages() const noexcept;

  /// Fills `out` with the bytes that start at `offset`. Requires that they are inside this buffer.
  /// The bytes of a mapped file are read from the file. For a caller that goes through them once,
  /// piece by piece, that costs less than mapping their pages. It also turns a truncated file into
  /// an error, where access to the mapping would kill the process.
  /// Errors: those of `read`; those of `ReadableFile::read_at`, for a mapped file only.
  [[nodiscard]] Status copy_to(std::size_t offset, std::span<std::byte> out) const;

  /// Returns whether the bytes can be read again from a file.
  [[nodiscard]] Backing backing() const noexcept {
    return file_ != nullptr ? Backing::kFile : Backing::kNone;
  }
  /// Returns whether this handle holds the bytes that it names. A handle that was read from a
  /// message or a file does not, unless it names none.
  [[nodiscard]] bool resolved() const noexcept { return bytes_.size() == identity_.length; }
  /// Returns the bytes, for handles that may have come from another process.
  /// Errors: `kNotFound` naming the buffer if the handle is unresolved.
  [[nodiscard]] Result<std::span<const std::byte>> read() const;
  /// Returns the bytes. Requires a resolved handle.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    TIDEMILL_CHECK(resolved()) << to_string(identity_) << " is not in this process";
    return bytes_;
  }
  /// Returns how many bytes the handle names, resolved or not.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return identity_.length; }
  [[nodiscard]] const BufferIdentity& identity() const noexcept { return identity_; }

  /// Returns the content as elements of `T`. Requires a resolved handle and a whole number of
  /// aligned elements.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> as() const {
    const std::span<const std::byte> content = bytes();
    TIDEMILL_CHECK(content.size() % sizeof(T) == 0) << content.size();
    TIDEMILL_CHECK(reinterpret_cast<std::uintptr_t>(content.data()) % alignof(T) == 0);
    return {reinterpret_cast<const T*>(content.data()), content.size() / sizeof(T)};
  }

  /// Serializes the identity only. A handle that is read back is unresolved; the bytes have to be
  /// sent separately.
  template <class Inspector>
  friend typename Inspector::result_type inspect(Inspector& f, Buffer& x) {
    const LetGo bytes_of_another{x, x.identity_};
    return f(x.identity_);
  }

private:
  // Drops the bytes of a buffer if it names others at the end of the scope.
  struct LetGo {
    Buffer& buffer;
    BufferIdentity before;
    ~LetGo() {
      if (buffer.identity_ != before) {
        buffer.owner_.reset();
        buffer.bytes_ = {};
        buffer.file_ = nullptr;
      }
    }
  };

  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  BufferIdentity identity_;
  const ReadableFile* file_ = nullptr;  // the mapped file, which `owner_` keeps alive, or null
};

}  // namespace tidemill
