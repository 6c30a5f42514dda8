// SPDX-License-Identifier: Apache-2.0
// Text that changes before it is split, and where each of its bytes came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/tokenizer/encoding.hpp"
#include "engines/tokenizer/normalize.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {

/// The largest part of a text, and the largest added token, after normalization.
inline constexpr std::size_t kMaxNormalizedBytes = std::size_t{32} << 20U;
inline constexpr std::size_t kMaxNormalizedTokenBytes = 4 * kMaxAddedTokenBytes;

/// A part of a text that may be changed. It can track which bytes of the whole text each byte came
/// from. Until the first change, it borrows the text.
class AlignedText {
public:
  enum class Track : std::uint8_t { kNo, kYes };

  /// Begins with the bytes of `text`, which are at offset `base` of the whole text. `text` must
  /// outlive this object and its slices. A change that would result in more than `max_bytes` fails.
  AlignedText(std::string_view text, std::size_t base, Track track,
              std::size_t max_bytes = kMaxNormalizedBytes)
      : viewed_(text), base_(base), max_bytes_(max_bytes), tracks_(track == Track::kYes) {}

  [[nodiscard]] std::string_view text() const noexcept { return owns_ ? owned_ : viewed_; }

  /// Returns whether `origin` is exact: the text has not changed, or changes are tracked.
  [[nodiscard]] bool knows_origins() const noexcept { return knows_origins_; }

  /// Returns the bytes of the whole text that bytes [begin, end) came from. Requires begin < end.
  [[nodiscard]] TextSpan origin(std::size_t begin, std::size_t end) const;

  /// Returns the bytes [begin, end). The slice borrows from this object.
  [[nodiscard]] AlignedText slice(std::size_t begin, std::size_t end) const;

  /// Applies a normalizer.
  /// Errors: those of `normalize_unicode`; `kInvalidArgument` if the result is too large.
  [[nodiscard]] Status apply(const NormalizerStep& step);

  /// Adds `content` at the beginning, unless the text is empty.
  void prepend(std::string_view content);

  /// Replaces all occurrences of `pattern`, from the left. Errors: as `apply`.
  [[nodiscard]] Status replace(std::string_view pattern, std::string_view content);

private:
  [[nodiscard]] Status check_size(std::size_t size) const;
  [[nodiscard]] ByteOrigin origin_at(std::size_t i) const;
  [[nodiscard]] Status normalize(NormalizationForm form);
  void strip(bool begin, bool end);
  void assign(std::string text, std::vector<ByteOrigin> origins);

  std::string_view viewed_;
  std::string owned_;
  bool owns_ = false;
  std::size_t base_;
  std::size_t max_bytes_;
  bool tracks_;
  bool knows_origins_ = true;
  std::vector<ByteOrigin>
      origins_;  // one per byte, if the text has changed and changes are tracked
};

/// Returns `text` after all steps. Errors: those of `AlignedText::apply`.
[[nodiscard]] Result<std::string> normalized_by(const std::vector<NormalizerStep>& steps,
                                                std::string_view text, std::size_t max_bytes);

}  // namespace tidemill::engines
