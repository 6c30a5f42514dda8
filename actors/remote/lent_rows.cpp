// SPDX-License-Identifier: Apache-2.0
#include "actors/remote/lent_rows.hpp"

#include <cstddef>
#include <cstdint>

#include "actors/wire/messages.hpp"

namespace tidemill::actors {
namespace {

// Every type of a cell may be read at an address that is a multiple of this.
constexpr std::size_t kCellAlignment = alignof(std::max_align_t);

// Returns the bytes of a lent cell. A part of a buffer may begin anywhere, so it may be a copy.
Result<Buffer> resolve_cell(BufferResolver* resolver, const BufferIdentity& identity) {
  if (resolver == nullptr) {
    return Status(Errc::kNotFound, "the process reads no lent cells");
  }
  TIDEMILL_ASSIGN_OR_RETURN(Buffer bytes, resolver->resolve(identity));
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.bytes().data());
  return address % kCellAlignment == 0 ? bytes : Buffer::copy_of(bytes.bytes(), identity.dtype);
}

}  // namespace

void LentCells::lend(std::vector<storage::LeasedRow>& rows, std::uint64_t min_bytes) {
  if (lender_ == nullptr) {
    return;
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (storage::ColumnValue& cell : rows[row].columns) {
      if (cell.value.size_bytes() < min_bytes) {
        continue;
      }
      auto lent = lender_->lend(cell.value);
      if (!lent.ok()) {
        return;
      }
      cell.value = Buffer::named(lent.value().identity());
      lent_.emplace_back(row, std::move(lent).value());
    }
  }
}

void LentCells::keep_first(std::size_t num_rows) {
  while (!lent_.empty() && lent_.back().first >= num_rows) {
    lender_->take_back(lent_.back().second);
    lent_.pop_back();
  }
}

Result<ReadRows> read_rows(const Buffer& body, BufferResolver* resolver) {
  auto reply = from_wire<LeaseReply>(body);
  if (!reply.ok()) {
    return Status(Errc::kUnavailable, reply.status().message());
  }
  ReadRows read{std::move(reply).value(), {}};
  for (storage::LeasedRow& row : read.reply.rows) {
    for (storage::ColumnValue& cell : row.columns) {
      if (cell.value.resolved()) {
        continue;
      }
      auto bytes = resolve_cell(resolver, cell.value.identity());
      if (bytes.ok()) {
        cell.value = std::move(bytes).value();
      } else if (read.resolved.ok()) {
        read.resolved = {Errc::kUnavailable, "a leased row: " + bytes.status().message()};
      }
    }
  }
  return read;
}

}  // namespace tidemill::actors
