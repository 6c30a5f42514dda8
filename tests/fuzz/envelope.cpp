// SPDX-License-Identifier: Apache-2.0
// Fuzzes messages between two processes. The input is a message; it gets the right checksum.
#include "transport/envelope.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tests/fuzz/target.hpp"
#include "tests/transport/framed.hpp"

namespace tidemill::fuzz {

void envelope(std::string_view input) {
  using transport::Envelope;
  const Buffer frame = transport::framed(std::as_bytes(std::span(input)));
  const Result<Envelope> read = transport::read_envelope(frame);
  if (!read.ok()) {
    require(
        read.status().code() == Errc::kCorruptData || read.status().code() == Errc::kUnimplemented,
        "a bad frame is corrupt or of another version");
    require_refusal(read.status(), "envelope: ");
    return;
  }
  require(read.value().body.size_bytes() <= frame.size_bytes(), "the body is inside the frame");
  require(read.value().deadline >= Duration::zero(), "deadlines are not negative");
  Result<std::vector<std::byte>> written = transport::write_envelope(read.value());
  require_ok(written.status(), "an envelope can be written again");
  const Result<Envelope> again =
      transport::read_envelope(Buffer::adopt(std::move(written).value(), DType::kU8));
  require_ok(again.status(), "what was written can be read");
  require(again.value().run == read.value().run &&
              again.value().incarnation == read.value().incarnation &&
              again.value().sender == read.value().sender &&
              again.value().kind == read.value().kind &&
              again.value().sequence == read.value().sequence &&
              again.value().reply_to == read.value().reply_to &&
              again.value().acknowledged == read.value().acknowledged &&
              again.value().credit == read.value().credit &&
              again.value().deadline == read.value().deadline &&
              std::ranges::equal(again.value().body.bytes(), read.value().body.bytes()),
          "an envelope survives a round trip");
}

}  // namespace tidemill::fuzz
