// SPDX-License-Identifier: Apache-2.0
// Tables in text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace tidemill::launcher {

/// The cells of a row, from left to right.
using TableRow = std::vector<std::string>;

/// Prints rows of as many cells as the first one has, in columns that are as wide as their widest
/// cell. Widths count bytes.
void print_table(const std::vector<TableRow>& rows, std::ostream& out);

}  // namespace tidemill::launcher
