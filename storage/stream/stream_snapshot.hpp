// SPDX-License-Identifier: Apache-2.0
// A stream as a value: its index and the cells of its rows.
#pragma once

#include <vector>

#include "base/ids.hpp"
#include "storage/records/sample.hpp"
#include "storage/stream/index_snapshot.hpp"

namespace tidemill::storage {

/// The cells of one live row.
struct RowColumns {
  SampleId row;
  std::vector<ColumnValue> columns;
};

/// A whole stream as a value. It shares the bytes of the cells with the stream it was taken from.
struct StreamSnapshot {
  IndexSnapshot index;
  std::vector<RowColumns> rows;  // in admission order, one for each row of the index
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RowColumns& x) {
  return f(x.row, x.columns);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StreamSnapshot& x) {
  return f(x.index, x.rows);
}

}  // namespace tidemill::storage
