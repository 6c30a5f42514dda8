// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/dataset.hpp"

#include <limits>
#include <type_traits>

#include "storage/dataset/epoch_order.hpp"
#include "storage/dataset/row_index.hpp"
#include "storage/dataset/row_parser.hpp"

namespace tidemill::storage {
namespace {

template <class Row>
Result<Row> parse(std::string_view text) {
  if constexpr (std::is_same_v<Row, PromptRow>) {
    return parse_prompt_row(text);
  } else {
    return parse_supervised_row(text);
  }
}

}  // namespace

template <class Row>
Result<std::unique_ptr<Dataset<Row>>> Dataset<Row>::open(const DatasetOptions& options) {
  const RowCheck check = [](std::string_view text) { return parse<Row>(text).status(); };
  TIDEMILL_ASSIGN_OR_RETURN(auto index, RowIndex::build(options, check));
  return std::unique_ptr<Dataset>(new Dataset(options, std::move(index)));
}

template <class Row>
Dataset<Row>::Dataset(const DatasetOptions& options, std::unique_ptr<RowIndex> index)
    : options_(options),
      index_(std::move(index)),
      order_(std::make_unique<EpochOrder>(index_->num_rows(), options.order, options.seed)) {}

template <class Row>
Dataset<Row>::~Dataset() = default;

template <class Row>
std::uint64_t Dataset<Row>::num_rows() const noexcept {
  return index_->num_rows();
}

template <class Row>
std::optional<std::uint64_t> Dataset<Row>::num_positions() const noexcept {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  if (options_.epochs == 0) {
    return std::nullopt;
  }
  return options_.epochs > kMost / num_rows() ? kMost : options_.epochs * num_rows();
}

template <class Row>
const std::vector<std::string>& Dataset<Row>::files() const noexcept {
  return index_->files();
}

template <class Row>
std::uint64_t Dataset<Row>::num_skipped() const noexcept {
  return index_->num_skipped();
}

template <class Row>
const std::vector<std::string>& Dataset<Row>::first_skipped() const noexcept {
  return index_->first_skipped();
}

template <class Row>
const std::string& Dataset<Row>::digest() const noexcept {
  return index_->digest();
}

template <class Row>
Result<Row> Dataset<Row>::row_at(std::uint64_t position) {
  if (const auto end = num_positions(); end && position >= *end) {
    return Status(Errc::kNotFound, "end of data: " + std::to_string(options_.epochs) +
                                       " epochs of " + std::to_string(num_rows()) +
                                       " rows are used up");
  }
  const std::uint64_t number = order_->row_of(position);
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, index_->read(number));
  RowPlace place = index_->place(number);
  auto row = parse<Row>(text);
  if (!row.ok()) {
    return row.status().with_context(place.to_string());
  }
  row.value().place = std::move(place);
  return row;
}

template class Dataset<PromptRow>;
template class Dataset<SupervisedRow>;

}  // namespace tidemill::storage
