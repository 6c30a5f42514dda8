// SPDX-License-Identifier: Apache-2.0
// A pushdown automaton over bytes that accepts the texts of a constraint.
//
// The automaton consists of rules. A rule is a deterministic automaton whose edges are bytes, or
// calls of rules: a call puts the state to return to on a stack, runs the called rule from its
// start, and goes on in that state when the rule has ended. Calls make recursion possible with a
// finite number of states. Only calls and ends are nondeterministic, so what is known of a text is
// a set of configurations (state, stack), which almost always has one or two members.
//
// A configuration can always be completed. The builder removes the states from which no end can be
// reached, and `need` of a state is the smallest number of frames that its rule requires above the
// current ones to end. An edge whose target would need more than `max_depth` frames is not taken,
// so the bound on the stack never leaves a text that cannot be completed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::engines {

/// A state that follows from another one by calls, without a byte.
struct GrammarEntry {
  std::int32_t state = 0;
  std::int32_t first_frame = 0;  // index in `Grammar::frames`, outermost first
  std::int32_t num_frames = 0;
  /// The largest number of frames, from the state before the calls, that the pushed states and this
  /// one need to end.
  std::int32_t reach = 0;
};

/// A compiled automaton. Immutable.
///
/// Threads: safe to read concurrently.
struct Grammar {
  std::int32_t start = 0;
  std::int32_t max_depth = 0;  // frames on the stack
  std::int32_t num_classes = 0;
  std::array<std::uint8_t, 256> classes{};  // by byte: its column in `next`
  std::vector<std::int32_t> next;           // states x classes: the state after a byte, or -1
  std::vector<std::uint8_t> accepts;        // by state: whether its rule may end here
  std::vector<std::int32_t> need;           // by state: frames that its rule still requires
  std::vector<std::int32_t> first_entry;    // by state, and one more: range of `entries`
  std::vector<GrammarEntry> entries;        // of each state: itself, if it has bytes, and by calls
  std::vector<std::int32_t> frames;

  [[nodiscard]] std::size_t num_states() const noexcept { return accepts.size(); }
  [[nodiscard]] bool accepts_at(std::int32_t state) const noexcept {
    return accepts[static_cast<std::size_t>(state)] != 0;
  }
  [[nodiscard]] std::int32_t need_of(std::int32_t state) const noexcept {
    return need[static_cast<std::size_t>(state)];
  }
  /// Returns the states whose bytes may follow in `state`. Empty if only the end of its rule can
  /// follow.
  [[nodiscard]] std::span<const GrammarEntry> entries_of(std::int32_t state) const noexcept {
    const auto at = static_cast<std::size_t>(state);
    return std::span(entries).subspan(
        static_cast<std::size_t>(first_entry[at]),
        static_cast<std::size_t>(first_entry[at + 1] - first_entry[at]));
  }
  [[nodiscard]] std::span<const std::int32_t> frames_of(const GrammarEntry& entry) const noexcept {
    return std::span(frames).subspan(static_cast<std::size_t>(entry.first_frame),
                                     static_cast<std::size_t>(entry.num_frames));
  }
  /// Returns the state after `byte` in `state` itself, or -1.
  [[nodiscard]] std::int32_t after(std::int32_t state, std::uint8_t byte) const noexcept {
    return next[static_cast<std::size_t>(state) * static_cast<std::size_t>(num_classes) +
                classes[byte]];
  }
};

}  // namespace tidemill::engines
