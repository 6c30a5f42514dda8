// SPDX-License-Identifier: Apache-2.0
// Compares the tokens that an engine streams with the result that follows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engines/rollout_engine.hpp"

namespace tidemill::test {

/// Joins the tokens that a sink receives, request by request.
class StreamedTokens {
public:
  /// Takes what `RolloutSink::on_tokens` received.
  void take(const engines::RolloutTokens& tokens) {
    Stream& stream = streams_[tokens.id];
    std::size_t covered = 0;
    for (const engines::VersionSpan& span : tokens.versions) {
      covered += span.num_tokens;
      append(span, stream.versions);
    }
    stream.in_order = stream.in_order && !tokens.ids.empty() && tokens.first == stream.ids.size() &&
                      tokens.behavior_logprobs.size() == tokens.ids.size() &&
                      covered == tokens.ids.size();
    stream.ids.insert(stream.ids.end(), tokens.ids.begin(), tokens.ids.end());
    stream.logprobs.insert(stream.logprobs.end(), tokens.behavior_logprobs.begin(),
                           tokens.behavior_logprobs.end());
    ++num_calls_;
  }

  /// Forgets the stream of a request that has ended. Returns how the stream differs from its
  /// result, or "" if it does not.
  std::string end(const engines::RolloutResult& result) {
    const Stream stream = streams_[result.id];
    streams_.erase(result.id);
    std::vector<engines::VersionSpan> versions;
    for (const engines::VersionSpan& span : result.versions) {
      append(span, versions);
    }
    const std::string sample = "request " + std::to_string(result.id.value) + ": ";
    if (!stream.in_order) {
      return sample + "tokens were streamed twice, out of order or incomplete";
    }
    if (stream.ids != result.response_ids || stream.logprobs != result.behavior_logprobs ||
        stream.versions != versions) {
      return sample + std::to_string(stream.ids.size()) + " streamed tokens differ from the " +
             std::to_string(result.response_ids.size()) + " of the result";
    }
    return "";
  }

  [[nodiscard]] std::size_t num_calls() const { return num_calls_; }

private:
  struct Stream {
    std::vector<std::int32_t> ids;
    std::vector<float> logprobs;
    std::vector<engines::VersionSpan> versions;
    bool in_order = true;
  };

  // Joins neighbors of one version, and drops empty spans.
  static void append(const engines::VersionSpan& span, std::vector<engines::VersionSpan>& spans) {
    if (span.num_tokens == 0) {
      return;
    }
    if (spans.empty() || spans.back().version != span.version) {
      spans.push_back({span.version, 0});
    }
    spans.back().num_tokens += span.num_tokens;
  }

  std::map<SampleId, Stream> streams_;
  std::size_t num_calls_ = 0;
};

}  // namespace tidemill::test
