// SPDX-License-Identifier: Apache-2.0
// The other side of `tidemill chat`: a model in this process, or a server.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launcher/terminal.hpp"

namespace tidemill::launcher {

/// A message of a conversation.
struct ChatMessage {
  std::string role;
  std::string content;
};

/// Prints a response while it is generated.
class ResponsePrinter {
public:
  explicit ResponsePrinter(std::ostream& out) : out_(out), letters_(detect_terminal(out).letters) {}

  /// Prints a piece of text, which must not end inside a character. Line ends stay; other control
  /// characters do not reach the terminal.
  void add(std::string_view piece);
  /// Returns what has been added.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
  std::ostream& out_;
  Letters letters_;
  std::string text_;
};

/// What responds to the user's messages.
class ChatPeer {
public:
  ChatPeer() = default;
  ChatPeer(const ChatPeer&) = delete;
  ChatPeer& operator=(const ChatPeer&) = delete;
  virtual ~ChatPeer() = default;

  /// Generates the response to a conversation that ends with a message of the user, until it is
  /// complete or `interrupted` returns true.
  /// Errors: one line that says why there is no response. What was printed does not count then.
  [[nodiscard]] virtual Status respond(const std::vector<ChatMessage>& messages,
                                       const std::function<bool()>& interrupted,
                                       ResponsePrinter& printer) = 0;
};

}  // namespace tidemill::launcher
