// SPDX-License-Identifier: Apache-2.0
// Rows whose large cells are lent to another process instead of being sent. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "actors/remote/buffer_exchange.hpp"
#include "actors/stream/messages.hpp"
#include "base/buffer.hpp"
#include "base/result.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::actors {

/// The cells of one reply that are lent. Takes them back unless the reply is sent.
class LentCells {
public:
  /// Lends through `lender`, which must outlive this. If it is null, nothing is lent.
  explicit LentCells(BufferLender* lender) : lender_(lender) {}
  LentCells(const LentCells&) = delete;
  LentCells& operator=(const LentCells&) = delete;
  ~LentCells() { keep_first(0); }

  /// Lends the cells of at least `min_bytes` bytes, and replaces their handles by unresolved ones.
  /// If a cell cannot be lent, it and all later ones are left as they are.
  void lend(std::vector<storage::LeasedRow>& rows, std::uint64_t min_bytes);
  /// Takes back what was lent of all rows but the first `num_rows`.
  void keep_first(std::size_t num_rows);
  /// Keeps what is lent: the reply was passed to the port.
  void set_sent() { lent_.clear(); }

private:
  BufferLender* lender_;
  std::vector<std::pair<std::size_t, Buffer>> lent_;  // by row, ascending
};

/// What a process reads from a reply with rows.
struct ReadRows {
  LeaseReply reply;
  Status resolved;  // why lent cells could not be resolved; the rows then lack bytes
};

/// Decodes a reply and resolves its lent cells, all of them even if one fails. If `resolver` is
/// null, none can be resolved.
/// Errors: `kUnavailable`, since a fault of the other process must not end the run as a failure
/// that would repeat. `ReadRows::resolved` has the same code.
[[nodiscard]] Result<ReadRows> read_rows(const Buffer& body, BufferResolver* resolver);

}  // namespace tidemill::actors
