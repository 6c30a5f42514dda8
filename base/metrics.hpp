// SPDX-License-Identifier: Apache-2.0
// Named counters, gauges and histograms, and snapshots of all of them.
//
// Names are lower_snake_case with the unit last (`kv_used_bytes`, `step_ms`, `rows_trained`);
// a quantity without a unit has none (`reward_mean`). A main program builds the registry and passes
// it down by reference. Code that measures keeps a reference to its instrument.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace tidemill {

/// A number that only grows.
class Counter {
public:
  void add(std::uint64_t count = 1) noexcept { value_.fetch_add(count, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept {
    return value_.load(std::memory_order_relaxed);
  }

private:
  std::atomic<std::uint64_t> value_{0};
};

/// The latest value of something.
class Gauge {
public:
  void set(double value) noexcept { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] double value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
  std::atomic<double> value_{0.0};
};

/// The summary of a histogram. Count, sum and extremes are exact. A quantile is at most 1/8 too
/// high.
struct HistogramSummary {
  std::uint64_t count = 0;
  double sum = 0.0;
  double min = 0.0;
  double max = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p99 = 0.0;
};

/// The distribution of a nonnegative quantity. There are eight buckets for each power of two from
/// 2^-32 to 2^64, and smaller values share one bucket. Values that are negative or not finite are
/// left out and counted separately.
class Histogram {
public:
  void record(double value);
  [[nodiscard]] HistogramSummary summary() const;
  /// Returns how many values were left out.
  [[nodiscard]] std::uint64_t refused() const;

private:
  static constexpr int kPerPower = 8;
  static constexpr int kLowestPower = -32;
  static constexpr int kHighestPower = 64;
  static constexpr std::size_t kBuckets = std::size_t{kHighestPower - kLowestPower} * kPerPower;
  static std::size_t bucket_of(double value);
  static double upper_bound(std::size_t bucket);
  [[nodiscard]] double quantile(double share) const;

  mutable std::mutex mutex_;
  std::array<std::uint64_t, kBuckets> buckets_{};
  HistogramSummary totals_;
  std::uint64_t refused_ = 0;
};

/// The values of all instruments at one moment.
struct MetricsSnapshot {
  std::map<std::string, std::uint64_t> counters;
  std::map<std::string, double> gauges;
  std::map<std::string, HistogramSummary> histograms;
};

/// Returns the snapshot as one JSON object on one line, sorted by name. A histogram is an object
/// with count, sum, min, max, p50, p90, p99. A gauge that is not finite is null.
[[nodiscard]] std::string to_json_line(const MetricsSnapshot& snapshot);

/// A registry, which owns its instruments.
///
/// Threads: safe to call concurrently, and so are the instruments.
class Metrics {
public:
  Metrics() = default;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics() = default;

  /// Returns the instrument of that name, which is created on first use and lives as long as this
  /// registry. Requires a name in lower_snake_case that no instrument of another kind has.
  [[nodiscard]] Counter& counter(std::string_view name);
  [[nodiscard]] Gauge& gauge(std::string_view name);
  [[nodiscard]] Histogram& histogram(std::string_view name);

  [[nodiscard]] MetricsSnapshot snapshot() const;

private:
  template <class Instrument>
  using Table = std::map<std::string, std::unique_ptr<Instrument>, std::less<>>;

  template <class Instrument>
  Instrument& find_or_make(Table<Instrument>& table, std::string_view name);

  mutable std::mutex mutex_;
  Table<Counter> counters_;
  Table<Gauge> gauges_;
  Table<Histogram> histograms_;
};

}  // namespace tidemill
