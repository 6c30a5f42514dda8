// SPDX-License-Identifier: Apache-2.0
#include "base/archive.hpp"

namespace tidemill {

void ArchiveWriter::append(const void* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), first, first + size);
}

}  // namespace tidemill
