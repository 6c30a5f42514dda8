// SPDX-License-Identifier: Apache-2.0
#include "bench/store_figures.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/random.hpp"
#include "bench/times.hpp"
#include "storage/stream/stream_index.hpp"

namespace tidemill::bench {
namespace {

constexpr storage::ColumnId kPrompt{0};
constexpr storage::ColumnId kResponse{1};
constexpr storage::TaskId kConsume{0};
constexpr const char* kConsumer = "consumer-0";

// A figure before it is measured.
struct StoreSize {
  const char* name;
  std::uint64_t live_rows;
};
constexpr std::array<StoreSize, 4> kSizes{{{"store_rows_1k", 1'000},
                                           {"store_rows_100k", 100'000},
                                           {"store_rows_1m", 1'000'000},
                                           {"store_rows_10m", 10'000'000}}};
constexpr std::array<StoreSize, 3> kMetaSizes{
    {{"store_meta_1k", 1'024}, {"store_meta_16k", 16'384}, {"store_meta_131k", 131'072}}};

// A stream of prompts that wait for their responses, and one task that trains on them.
storage::StreamOptions stream_options() {
  storage::StreamOptions options;
  options.columns = {{"prompt"}, {"response"}};
  options.tasks = {{"consume", {"response"}, {}}};
  options.tasks[0].max_staleness = 1;
  return options;
}

// Returns the time that this thread has computed. Other programs of a shared machine take none of
// it.
Duration thread_time() {
  timespec time{};
  TIDEMILL_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// A stream index that always holds the same number of rows between two calls.
class MeasuredStore {
public:
  MeasuredStore(std::uint64_t live_rows, StoreOrder order)
      : index_(storage::StreamIndex::create(stream_options()).value()),
        order_(order),
        random_(live_rows) {
    for (std::uint64_t i = 0; i < live_rows; ++i) {
      admit();
    }
  }

  // Passes at least `rows` rows through the task. Returns how long each of them took, in ns.
  double time_rows(std::uint64_t rows, std::uint64_t rows_per_call) {
    Duration spent{};
    std::uint64_t passed = 0;
    while (passed < rows) {
      choose(std::min<std::uint64_t>(rows_per_call, live_.size() - first_));
      const Duration start = thread_time();
      pass_chosen();
      spent += thread_time() - start;
      passed += chosen_.size();
      for (std::size_t i = 0; i < chosen_.size(); ++i) {
        admit();
      }
    }
    return static_cast<double>(spent.count()) / static_cast<double>(passed);
  }

private:
  // Admits the next row with its prompt.
  void admit() {
    storage::SampleRow row;
    row.id = {next_row_++};
    const std::array<storage::CellInfo, 1> cells{{{kPrompt, 64}}};
    const Status put = index_->put(row, cells, {});
    TIDEMILL_CHECK(put.ok()) << put.message();
    live_.push_back(row.id);
  }

  // Chooses the rows that finish next, and forgets them.
  void choose(std::uint64_t count) {
    chosen_.clear();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (order_ == StoreOrder::kRandom) {
        std::swap(live_[random_.below(live_.size())], live_.back());
        chosen_.push_back(live_.back());
        live_.pop_back();
      } else {
        chosen_.push_back(live_[first_++]);
      }
    }
    if (first_ > live_.size() / 2 && order_ == StoreOrder::kAdmission) {
      live_.erase(live_.begin(), live_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
  }

  // What is measured. Not inlined, so that a profile can be limited to it.
  [[gnu::noinline]] void pass_chosen() {
    const std::array<storage::CellInfo, 1> cells{{{kResponse, 256}}};
    writes_.clear();
    for (const SampleId id : chosen_) {
      writes_.push_back({{.id = id}, cells, {0, 64}});
    }
    const Status written = index_->put(writes_);
    TIDEMILL_CHECK(written.ok()) << written.message();
    const auto count = static_cast<std::uint32_t>(chosen_.size());
    const Status leased = index_->lease({kConsume, kConsumer, count, count}, now_, grant_);
    TIDEMILL_CHECK(leased.ok() && grant_.shares[0].rows.size() == count) << count;
    held_.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      held_[i].lease = grant_.shares[0].rows[i].lease;
    }
    const Status acked = index_->complete({kConsume, kConsumer}, held_, now_, settlement_);
    TIDEMILL_CHECK(acked.ok() && settlement_.done.size() == count) << count;
    index_->take_effects(effects_);
    TIDEMILL_CHECK(effects_.retired.size() == count) << effects_.retired.size();
  }

  std::unique_ptr<storage::StreamIndex> index_;
  const StoreOrder order_;
  RandomStream random_;
  std::uint64_t next_row_ = 0;
  std::vector<SampleId> live_;  // from `first_` on
  std::size_t first_ = 0;
  std::vector<SampleId> chosen_;
  std::vector<storage::RowWrite> writes_;
  storage::Grant grant_;
  std::vector<storage::HeldRowInfo> held_;
  storage::Settlement settlement_;
  storage::StreamEffects effects_;
  TimePoint now_{};
};

// Rows that are written, leased and acked together, as a trainer does with a batch.
class MeasuredBatch {
public:
  explicit MeasuredBatch(std::uint64_t rows) : rows_(rows) {
    storage::StreamOptions options;
    for (std::uint32_t column = 0; column < kNumColumns; ++column) {
      options.columns.push_back({"column-" + std::to_string(column)});
      cells_.push_back({{column}, 64});
    }
    options.tasks = {{"consume", {}, {}}};
    for (const storage::ColumnOptions& column : options.columns) {
      options.tasks[0].inputs.push_back(column.name);
    }
    index_ = storage::StreamIndex::create(std::move(options)).value();
  }

  // Passes the rows through the stream. Returns how long each of them took, in ns.
  double time_rows() {
    const Duration start = thread_time();
    writes_.clear();
    for (std::uint64_t i = 0; i < rows_; ++i) {
      writes_.push_back({{.id = {next_row_++}}, cells_, {0, 64}});
    }
    const Status written = index_->put(writes_);
    const auto count = static_cast<std::uint32_t>(rows_);
    const Status leased = index_->lease({kConsume, kConsumer, count, count}, TimePoint{}, grant_);
    TIDEMILL_CHECK(written.ok() && leased.ok()) << written.message() << leased.message();
    held_.resize(grant_.shares[0].rows.size());
    for (std::size_t i = 0; i < held_.size(); ++i) {
      held_[i].lease = grant_.shares[0].rows[i].lease;
    }
    const Status acked = index_->complete({kConsume, kConsumer}, held_, TimePoint{}, settlement_);
    TIDEMILL_CHECK(acked.ok() && settlement_.done.size() == rows_) << rows_;
    index_->take_effects(effects_);
    return static_cast<double>((thread_time() - start).count()) / static_cast<double>(rows_);
  }

private:
  static constexpr std::uint32_t kNumColumns = 9;

  const std::uint64_t rows_;
  std::unique_ptr<storage::StreamIndex> index_;
  std::vector<storage::CellInfo> cells_;
  std::uint64_t next_row_ = 0;
  std::vector<storage::RowWrite> writes_;
  storage::Grant grant_;
  std::vector<storage::HeldRowInfo> held_;
  storage::Settlement settlement_;
  storage::StreamEffects effects_;
};

double measure_one(const StoreSize& size, StoreOrder order, const StoreMeasure& how) {
  MeasuredStore store(size.live_rows, order);
  store.time_rows(how.measured_rows / 10, how.rows_per_call);
  std::vector<double> times;
  for (std::uint64_t i = 0; i < how.repetitions; ++i) {
    times.push_back(store.time_rows(how.measured_rows, how.rows_per_call));
  }
  return median(times);
}

double measure_batches(std::uint64_t rows, const StoreMeasure& how) {
  MeasuredBatch batch(rows);
  batch.time_rows();
  std::vector<double> times;
  for (std::uint64_t i = 0; i < how.repetitions; ++i) {
    times.push_back(batch.time_rows());
  }
  return median(times);
}

bool is_named(const StoreMeasure& how, const char* figure) {
  return how.figures.empty() || std::ranges::find(how.figures, figure) != how.figures.end();
}

void measure_rows(const StoreMeasure& how, StoreOrder order, std::vector<StoreFigure>& figures) {
  if (std::ranges::none_of(kSizes,
                           [&](const StoreSize& size) { return is_named(how, size.name); })) {
    return;
  }
  double of_1k = 0.0;
  for (const StoreSize& size : kSizes) {
    if (is_named(how, size.name) || &size == &kSizes.front()) {
      const double ns = measure_one(size, order, how);
      of_1k = &size == &kSizes.front() ? ns : of_1k;
      figures.push_back(
          {size.name, order, size.live_rows, 1e9 / ns, ns, kStoreTargetRate, ns / of_1k});
    }
  }
}

}  // namespace

std::vector<std::string> store_figures() {
  std::vector<std::string> names;
  names.reserve(kSizes.size() + kMetaSizes.size());
  for (const StoreSize& size : kSizes) {
    names.emplace_back(size.name);
  }
  for (const StoreSize& size : kMetaSizes) {
    names.emplace_back(size.name);
  }
  return names;
}

std::vector<StoreFigure> measure_store(const StoreMeasure& how) {
  std::vector<StoreFigure> figures;
  for (const StoreOrder order : {StoreOrder::kAdmission, StoreOrder::kRandom}) {
    if (how.order.value_or(order) == order) {
      measure_rows(how, order, figures);
    }
  }
  for (const StoreSize& size : kMetaSizes) {
    if (is_named(how, size.name)) {
      const double ns = measure_batches(size.live_rows, how);
      figures.push_back({size.name, StoreOrder::kAdmission, size.live_rows, 1e9 / ns, ns});
    }
  }
  return figures;
}

}  // namespace tidemill::bench
