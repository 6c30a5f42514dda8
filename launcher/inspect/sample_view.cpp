// SPDX-License-Identifier: Apache-2.0
#include "launcher/inspect/sample_view.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/text/utf8.hpp"

namespace tidemill::launcher {
namespace {

constexpr std::size_t kIndent = 10;   // columns of the names in front of the texts
constexpr float kMinLogprob = -5.0F;  // lower log-probabilities have the same color

template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

// Maps a log-probability to 0 (certain) to 1 (kMinLogprob or less). The square root enlarges
// differences near certainty.
double surprise(float logprob) {
  return std::isnan(logprob) ? 1.0 : std::sqrt(std::clamp(double{logprob / kMinLogprob}, 0.0, 1.0));
}

// Returns the escape sequence for black text on green (certain), yellow or red.
std::string color_escape(float logprob, Colors colors) {
  const double share = surprise(logprob);
  if (colors == Colors::kTrue) {
    const double red = 135.0 + 240.0 * std::min(share, 0.5);
    const double green = 255.0 - 240.0 * std::max(share - 0.5, 0.0);
    return formatted("\x1b[38;5;16;48;2;%d;%d;135m", static_cast<int>(std::lround(red)),
                     static_cast<int>(std::lround(green)));
  }
  // The same colors in the palette of 256.
  constexpr std::array<int, 7> kPalette{120, 156, 192, 228, 222, 216, 210};
  const auto index = static_cast<std::size_t>(std::lround(share * (kPalette.size() - 1)));
  return formatted("\x1b[38;5;16;48;5;%dm", kPalette.at(index));
}

constexpr const char* kPlain = "\x1b[0m";

struct ShownToken {
  std::string text;
  float logprob = 0.0F;
  bool ends_line = false;
};

std::vector<ShownToken> shown_tokens(const storage::SampleLine& sample, const Terminal& terminal,
                                     const TokenBytes& bytes) {
  std::vector<ShownToken> tokens;
  std::string held;  // tokens that do not yet end with a complete character
  float lowest = 0.0F;
  const auto flush = [&] {
    tokens.push_back({shown_text(held, terminal.letters), lowest, held.ends_with('\n')});
    held.clear();
    lowest = 0.0F;
  };
  for (std::size_t i = 0; i < sample.response_ids.size(); ++i) {
    const std::string text = bytes ? bytes(sample.response_ids[i]) : std::string();
    const std::string id = "#" + std::to_string(sample.response_ids[i]);
    held += text.empty() ? id : text;
    lowest = std::isnan(sample.behavior_logprobs[i])
                 ? sample.behavior_logprobs[i]
                 : std::min(lowest, sample.behavior_logprobs[i]);
    std::string whole;
    if (append_repaired_utf8(held, whole) == held.size()) {
      flush();
    }
  }
  if (!held.empty()) {
    flush();
  }
  return tokens;
}

// Lays out words after a name, with line breaks between words at the width of the terminal.
class Paragraph {
public:
  Paragraph(std::string_view name, std::size_t columns) : text_(name), columns_(columns) {
    text_.resize(kIndent, ' ');
  }

  /// Adds `shown`, which takes `width` columns.
  void add(std::string_view shown, std::size_t width) {
    if (at_ > kIndent && at_ + width > columns_) {
      break_line();
    }
    text_ += shown;
    at_ += width;
  }
  void break_line() {
    text_ += '\n' + std::string(kIndent, ' ');
    at_ = kIndent;
  }
  [[nodiscard]] std::string take() && {
    const std::size_t end = text_.find_last_not_of(" \n");
    text_.erase(end + 1);
    return text_ + '\n';
  }

private:
  std::string text_;
  std::size_t columns_;
  std::size_t at_ = kIndent;
};

// Lays out a text after its name, with line breaks at its newlines and at the width of the
// terminal.
std::string draw_text(std::string_view name, std::string_view text, const Terminal& terminal) {
  Paragraph paragraph(name, terminal.columns);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = read_utf8(text, at).length;
    const std::string shown = shown_text(text.substr(at, length), terminal.letters);
    paragraph.add(shown, shown_width(shown));
    at += length;
    if (text[at - 1] == '\n' && at < text.size()) {
      paragraph.break_line();
    }
  }
  return std::move(paragraph).take();
}

std::string draw_tokens(const std::vector<ShownToken>& tokens, const Terminal& terminal) {
  Paragraph paragraph("tokens", terminal.columns);
  for (const ShownToken& token : tokens) {
    if (terminal.colors == Colors::kNone) {
      const std::string shown =
          '"' + token.text + "\" " + formatted("%.3f", static_cast<double>(token.logprob)) + "  ";
      paragraph.add(shown, shown_width(shown));
    } else {
      paragraph.add(color_escape(token.logprob, terminal.colors) + token.text + kPlain,
                    shown_width(token.text));
    }
    if (token.ends_line && &token != &tokens.back()) {
      paragraph.break_line();
    }
  }
  return std::move(paragraph).take();
}

}  // namespace

std::string draw_sample(const storage::SampleLine& sample, const Terminal& terminal,
                        const TokenBytes& bytes) {
  const std::vector<ShownToken> tokens = shown_tokens(sample, terminal, bytes);
  double sum = 0.0;
  for (const float logprob : sample.behavior_logprobs) {
    sum += logprob;
  }
  std::string head =
      formatted("sample %lld  group %lld  step %lld", static_cast<long long>(sample.sample),
                static_cast<long long>(sample.group), static_cast<long long>(sample.step)) +
      formatted("  reward %.4g  advantage %.4g", sample.reward, sample.advantage) +
      formatted("  %zu tokens  log-probability %.3f", sample.response_ids.size(), sum) + "  " +
      shown_text(sample.finish_reason, terminal.letters);
  if (terminal.colors != Colors::kNone) {
    head = "\x1b[1m" + head + kPlain;
  }
  std::string out = head + '\n' + draw_text("prompt", sample.prompt, terminal) +
                    draw_text("response", sample.response, terminal);
  if (!sample.reference_answer.empty()) {
    out += draw_text("answer", sample.reference_answer, terminal);
  }
  return out + draw_tokens(tokens, terminal) + '\n';
}

std::string draw_legend(const Terminal& terminal) {
  if (terminal.colors == Colors::kNone) {
    return {};
  }
  std::string out = "log-probability of a token: ";
  for (const float logprob : {0.0F, -0.1F, -0.5F, -1.0F, -2.0F, -3.0F, -5.0F}) {
    out += color_escape(logprob, terminal.colors) +
           formatted(" %.3g ", static_cast<double>(logprob)) + kPlain;
  }
  return out + " and below\n\n";
}

}  // namespace tidemill::launcher
