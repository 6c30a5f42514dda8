// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/dataset.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>

#include "base/digest.hpp"
#include "storage/dataset/epoch_order.hpp"
#include "storage/dataset/mixture_order.hpp"
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

Status check_weights(const DatasetOptions& options) {
  if (options.weights.empty()) {
    return {};
  }
  if (options.weights.size() != options.paths.size()) {
    return invalid_argument("weights: must have one entry for each path");
  }
  const auto bad = std::find_if(options.weights.begin(), options.weights.end(), [](double weight) {
    return !std::isfinite(weight) || weight <= 0.0;
  });
  return bad == options.weights.end() ? Status() : invalid_argument("weights: must be above 0");
}

// The rows of a file that is listed under two weights would have no definite weight.
Status check_overlap(std::vector<std::string> files) {
  std::sort(files.begin(), files.end());
  const auto twice = std::adjacent_find(files.begin(), files.end());
  return twice == files.end() ? Status() : invalid_argument(*twice + ": has two weights");
}

std::string digest_text(const std::string& text) {
  DigestHasher hasher;
  hasher.update(std::as_bytes(std::span(text)));
  return hasher.digest();
}

}  // namespace

template <class Row>
Result<std::unique_ptr<Dataset<Row>>> Dataset<Row>::open(const DatasetOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(check_weights(options));
  const RowCheck check = [](std::string_view text) { return parse<Row>(text).status(); };
  std::unique_ptr<Dataset> data(new Dataset(options));
  const std::size_t num_sources = std::max<std::size_t>(options.weights.size(), 1);
  for (std::size_t i = 0; i < num_sources; ++i) {
    DatasetOptions part = options;
    if (!options.weights.empty()) {
      part.paths = {options.paths[i]};
    }
    Source source;
    TIDEMILL_ASSIGN_OR_RETURN(source.index, RowIndex::build(part, check));
    source.order =
        std::make_unique<EpochOrder>(source.index->num_rows(), options.order, options.seed + i);
    data->num_rows_ += source.index->num_rows();
    data->digest_ += source.index->digest();
    data->sources_.push_back(std::move(source));
  }
  if (!options.weights.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_overlap(data->files()));
    data->mixture_ = std::make_unique<MixtureOrder>(options.weights);
    for (const double weight : options.weights) {
      std::array<char, 32> text{};
      const auto end = std::to_chars(text.data(), text.data() + text.size(), weight).ptr;
      data->digest_ += ' ' + std::string(text.data(), end);
    }
    data->digest_ = digest_text(data->digest_);
  }
  return data;
}

template <class Row>
Dataset<Row>::Dataset(const DatasetOptions& options) : options_(options) {}

template <class Row>
Dataset<Row>::~Dataset() = default;

template <class Row>
std::uint64_t Dataset<Row>::num_rows() const noexcept {
  return num_rows_;
}

template <class Row>
std::optional<std::uint64_t> Dataset<Row>::num_positions() const noexcept {
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  if (options_.epochs == 0) {
    return std::nullopt;
  }
  return options_.epochs > kMax / num_rows() ? kMax : options_.epochs * num_rows();
}

template <class Row>
std::uint64_t Dataset<Row>::positions_of_all_rows() const noexcept {
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t positions = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    // The row that is first in one epoch may be last in the next.
    const std::uint64_t draws = 2 * sources_[i].index->num_rows() - 1;
    const std::uint64_t gap = mixture_ == nullptr ? 1 : mixture_->longest_gap(i);
    positions = std::max(positions, gap > kMax / draws ? kMax : gap * draws);
  }
  return positions;
}

template <class Row>
std::vector<std::string> Dataset<Row>::files() const {
  std::vector<std::string> files;
  for (const Source& source : sources_) {
    files.insert(files.end(), source.index->files().begin(), source.index->files().end());
  }
  return files;
}

template <class Row>
std::uint64_t Dataset<Row>::num_skipped() const noexcept {
  std::uint64_t sum = 0;
  for (const Source& source : sources_) {
    sum += source.index->num_skipped();
  }
  return sum;
}

template <class Row>
std::vector<std::string> Dataset<Row>::first_skipped() const {
  std::vector<std::string> lines;
  for (const Source& source : sources_) {
    const auto& more = source.index->first_skipped();
    lines.insert(lines.end(), more.begin(), more.end());
  }
  lines.resize(std::min<std::size_t>(lines.size(), 10));
  return lines;
}

template <class Row>
const std::string& Dataset<Row>::digest() const noexcept {
  return digest_;
}

template <class Row>
Result<Row> Dataset<Row>::row_at(std::uint64_t position) {
  if (const auto end = num_positions(); end && position >= *end) {
    return Status(Errc::kNotFound, "end of data: " + std::to_string(options_.epochs) +
                                       " epochs of " + std::to_string(num_rows()) +
                                       " rows are used up");
  }
  const MixtureOrder::Draw draw =
      mixture_ == nullptr ? MixtureOrder::Draw{0, position} : mixture_->at(position);
  Source& source = sources_[draw.source];
  return read_row(*source.index, source.order->row_of(draw.position));
}

template <class Row>
Result<Row> Dataset<Row>::row_in_file_order(std::uint64_t number) {
  for (Source& source : sources_) {
    if (number < source.index->num_rows()) {
      return read_row(*source.index, number);
    }
    number -= source.index->num_rows();
  }
  return Status(Errc::kInternal, "no row of that number");
}

template <class Row>
Result<Row> Dataset<Row>::read_row(RowIndex& index, std::uint64_t number) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, index.read(number));
  RowLocation location = index.location(number);
  auto row = parse<Row>(text);
  if (!row.ok()) {
    return row.status().with_context(location.to_string());
  }
  row.value().location = std::move(location);
  return row;
}

template class Dataset<PromptRow>;
template class Dataset<SupervisedRow>;

}  // namespace tidemill::storage
