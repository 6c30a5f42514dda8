// SPDX-License-Identifier: Apache-2.0
#include "actors/stream/sample_columns.hpp"

namespace tidemill::actors {

storage::ColumnValue make_text_cell(SampleColumn column, std::string_view text) {
  return make_cell(column, std::vector<char>(text.begin(), text.end()));
}

storage::ColumnValue make_versions_cell(std::span<const engines::VersionSpan> versions,
                                        SampleColumn column) {
  std::vector<std::uint64_t> words;
  words.reserve(3 * versions.size());
  for (const engines::VersionSpan& span : versions) {
    words.insert(words.end(),
                 {std::uint64_t{span.version.incarnation}, span.version.step, span.num_tokens});
  }
  return make_cell(column, std::move(words));
}

const Buffer* find_optional_cell(const storage::LeasedRow& row, SampleColumn column) {
  for (const storage::ColumnValue& cell : row.columns) {
    if (cell.column.value == static_cast<std::uint32_t>(column)) {
      return &cell.value;
    }
  }
  return nullptr;
}

Result<Buffer> find_cell(const storage::LeasedRow& row, SampleColumn column) {
  if (const Buffer* cell = find_optional_cell(row, column); cell != nullptr) {
    return *cell;
  }
  return Status(Errc::kInternal,
                "leased row lacks a column row=" + std::to_string(row.row.id.value) +
                    " column=" + std::string(kSampleColumnNames[static_cast<std::size_t>(column)]));
}

std::string cell_text(const Buffer& cell) {
  const auto text = cell.as<char>();
  return {text.begin(), text.end()};
}

std::vector<engines::VersionSpan> cell_versions(const Buffer& cell) {
  std::vector<engines::VersionSpan> versions;
  const auto words = cell.as<std::uint64_t>();
  for (std::size_t i = 0; i + 2 < words.size(); i += 3) {
    versions.push_back({{0, static_cast<std::uint32_t>(words[i]), words[i + 1]},
                        static_cast<std::uint32_t>(words[i + 2])});
  }
  return versions;
}

}  // namespace tidemill::actors
