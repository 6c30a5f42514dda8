// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.hpp"

namespace tidemill {
namespace {

bool is_metric_name(std::string_view name) {
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && lower(name.front()) && name.back() != '_' &&
         std::all_of(name.begin(), name.end(),
                     [&lower](char c) { return lower(c) || c == '_' || (c >= '0' && c <= '9'); });
}

}  // namespace

std::size_t Histogram::bucket_of(double value) {
  int power = 0;
  const double fraction = std::frexp(value, &power);  // value = fraction * 2^power, [0.5, 1)
  if (value <= 0.0 || power <= kLowestPower) {
    return 0;
  }
  const int part = static_cast<int>((fraction - 0.5) * 2 * kPerPower);
  const int bucket = (power - 1 - kLowestPower) * kPerPower + part;
  return std::min(static_cast<std::size_t>(bucket), kBuckets - 1);
}

double Histogram::upper_bound(std::size_t bucket) {
  const int power = static_cast<int>(bucket) / kPerPower + kLowestPower;
  const int part = static_cast<int>(bucket) % kPerPower;
  return std::ldexp(1.0 + static_cast<double>(part + 1) / kPerPower, power);
}

void Histogram::record(double value) {
  const std::lock_guard lock(mutex_);
  if (!std::isfinite(value) || value < 0.0) {
    ++refused_;
    return;
  }
  totals_.min = totals_.count == 0 ? value : std::min(totals_.min, value);
  totals_.max = std::max(totals_.max, value);
  totals_.sum += value;
  ++totals_.count;
  ++buckets_.at(bucket_of(value));
}

double Histogram::quantile(double share) const {
  const auto rank = static_cast<std::uint64_t>(
      std::max(1.0, std::ceil(share * static_cast<double>(totals_.count))));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_.at(i);
    if (seen >= rank) {
      // The bucket's bound may be outside the extremes, but no value is.
      return std::clamp(upper_bound(i), totals_.min, totals_.max);
    }
  }
  return totals_.max;
}

HistogramSummary Histogram::summary() const {
  const std::lock_guard lock(mutex_);
  HistogramSummary summary = totals_;
  if (summary.count > 0) {
    summary.p50 = quantile(0.50);
    summary.p90 = quantile(0.90);
    summary.p99 = quantile(0.99);
  }
  return summary;
}

std::uint64_t Histogram::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

template <class Instrument>
Instrument& Metrics::find_or_make(Table<Instrument>& table, std::string_view name) {
  const std::lock_guard lock(mutex_);
  auto entry = table.find(name);
  if (entry == table.end()) {
    TIDEMILL_CHECK(is_metric_name(name)) << name;
    TIDEMILL_CHECK(counters_.count(name) + gauges_.count(name) + histograms_.count(name) == 0)
        << "one name, two kinds: " << name;
    entry = table.emplace(std::string(name), std::make_unique<Instrument>()).first;
  }
  return *entry->second;
}

Counter& Metrics::counter(std::string_view name) {
  return find_or_make(counters_, name);
}

Gauge& Metrics::gauge(std::string_view name) {
  return find_or_make(gauges_, name);
}

Histogram& Metrics::histogram(std::string_view name) {
  return find_or_make(histograms_, name);
}

MetricsSnapshot Metrics::snapshot() const {
  const std::lock_guard lock(mutex_);
  MetricsSnapshot snapshot;
  for (const auto& [name, counter] : counters_) {
    snapshot.counters.emplace(name, counter->value());
  }
  for (const auto& [name, gauge] : gauges_) {
    snapshot.gauges.emplace(name, gauge->value());
  }
  for (const auto& [name, histogram] : histograms_) {
    snapshot.histograms.emplace(name, histogram->summary());
  }
  return snapshot;
}

std::string to_json_line(const MetricsSnapshot& snapshot) {
  nlohmann::json object = nlohmann::json::object();  // sorts its keys
  for (const auto& [name, value] : snapshot.counters) {
    object[name] = value;
  }
  for (const auto& [name, value] : snapshot.gauges) {
    object[name] = std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
  }
  for (const auto& [name, summary] : snapshot.histograms) {
    object[name] = {{"count", summary.count}, {"sum", summary.sum}, {"min", summary.min},
                    {"max", summary.max},     {"p50", summary.p50}, {"p90", summary.p90},
                    {"p99", summary.p99}};
  }
  return object.dump();
}

}  // namespace tidemill
