// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.hpp"

#include <algorithm>
#include <atomic>
#include <sys/mman.h>
#include <unistd.h>

#include "base/files/file.hpp"

namespace tidemill {
namespace {

// Segment numbers only have to be unique within the process; their order has no meaning.
std::uint64_t next_segment() {
  static std::atomic<std::uint64_t> counter{1};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::string to_string(const BufferIdentity& identity) {
  return "buffer " + std::to_string(identity.pool) + "." + std::to_string(identity.segment) + "." +
         std::to_string(identity.generation) + "+" + std::to_string(identity.offset) + ", " +
         std::to_string(identity.length) + " bytes";
}

Buffer Buffer::copy_of(std::span<const std::byte> bytes, DType dtype) {
  return adopt(std::vector<std::byte>(bytes.begin(), bytes.end()), DType::kU8)
      .slice(0, bytes.size(), dtype);
}

Buffer Buffer::wrap(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                    DType dtype, const ReadableFile* file) {
  Buffer buffer;
  buffer.owner_ = std::move(owner);
  buffer.bytes_ = bytes;
  buffer.identity_.segment = next_segment();
  buffer.identity_.length = bytes.size();
  buffer.identity_.dtype = dtype;
  buffer.file_ = file;
  return buffer;
}

Buffer Buffer::of_pool(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                       const BufferIdentity& identity) {
  TIDEMILL_CHECK(identity.length == bytes.size()) << to_string(identity);
  Buffer buffer;
  buffer.owner_ = std::move(owner);
  buffer.bytes_ = bytes;
  buffer.identity_ = identity;
  return buffer;
}

Buffer Buffer::named(const BufferIdentity& identity) {
  Buffer buffer;
  buffer.identity_ = identity;
  return buffer;
}

Result<std::span<const std::byte>> Buffer::read() const {
  if (!resolved()) {
    return Status(Errc::kNotFound, to_string(identity_) + ": is not in this process");
  }
  return bytes_;
}

void Buffer::release_pages() const noexcept {
  if (file_ == nullptr || bytes_.empty()) {
    return;
  }
  // Releases every page that overlaps the range. Neighboring buffers read shared pages again.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(bytes_.data()) % page;
  auto* begin = const_cast<std::byte*>(bytes_.data() - before);   // pages are released, not written
  (void)::madvise(begin, before + bytes_.size(), MADV_DONTNEED);  // only a hint
}

Status Buffer::copy_to(std::size_t offset, std::span<std::byte> out) const {
  TIDEMILL_CHECK(offset <= size_bytes() && out.size() <= size_bytes() - offset)
      << offset << '+' << out.size() << " of " << size_bytes();
  TIDEMILL_RETURN_IF_ERROR(read().status());
  if (file_ != nullptr) {
    return file_->read_at(identity_.offset + offset, out);
  }
  std::ranges::copy(bytes_.subspan(offset, out.size()), out.begin());
  return {};
}

Buffer Buffer::slice(std::size_t offset, std::size_t length, DType dtype) const {
  TIDEMILL_CHECK(offset <= size_bytes() && length <= size_bytes() - offset)
      << offset << '+' << length << " of " << size_bytes();
  Buffer part = *this;
  if (resolved()) {
    part.bytes_ = bytes_.subspan(offset, length);
  }
  part.identity_.offset += offset;
  part.identity_.length = length;
  part.identity_.dtype = dtype;
  return part;
}

}  // namespace tidemill
