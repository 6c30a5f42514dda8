// SPDX-License-Identifier: Apache-2.0
// The files of the pages, which cmake/embed_files.cmake turns into arrays. Private to this folder.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace tidemill::actors::pages {

/// A file of this folder.
struct EmbeddedFile {
  std::string_view name;  // "chat.js"
  const unsigned char* bytes = nullptr;
  std::size_t size = 0;
  std::string_view digest;  // SHA-256, in hexadecimal
};

/// Returns all files.
[[nodiscard]] std::span<const EmbeddedFile> embedded_files() noexcept;

}  // namespace tidemill::actors::pages
