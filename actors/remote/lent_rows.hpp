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
  /// Lends nothing if `lender` is null.
  explicit LentCells(BufferLender* lender) : lender_(lender) {}
  LentCells(const LentCells&) = delete;
  LentCells& operator=(const LentCells&) = delete;
  ~LentCells() { keep_first(0); }

  /// Lends the cells of at least `min_bytes`, and replaces their handles by unresolved ones. Once a
  /// cell cannot be lent, the others are left as they are.
  void lend(std::vector<storage::LeasedRow>& rows, std::uint64_t min_bytes);
  /// Takes back what was lent of all rows but the first `num_rows`.
  void keep_first(std::size_t num_rows);
  /// The rows that are left are sent.
  void set_sent() { lent_.clear(); }

private:
  BufferLender* lender_;
  std::vector<std::pair<std::size_t, Buffer>> lent_;  // by row, ascending
};

/// Decodes a reply and resolves its lent cells, all of them even if one fails. A row never has an
/// unresolved cell.
/// Errors: `kUnavailable`, since a fault of the other process must not end the run as a failure
/// that would repeat.
[[nodiscard]] Result<LeaseReply> read_rows(const Buffer& body, BufferResolver* resolver);

}  // namespace tidemill::actors
