// SPDX-License-Identifier: Apache-2.0
#include "launcher/chat/chat_peer.hpp"

#include <algorithm>
#include <ostream>

namespace tidemill::launcher {

void ResponsePrinter::add(std::string_view piece) {
  text_ += piece;
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t end = std::min(piece.find('\n', begin), piece.size());
    out_ << shown_text(piece.substr(begin, end - begin), letters_)
         << (end < piece.size() ? "\n" : "");
    begin = end + 1;
  }
  out_ << std::flush;
}

}  // namespace tidemill::launcher
