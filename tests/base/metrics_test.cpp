// SPDX-License-Identifier: Apache-2.0
// The metric registry: exact counts, bounded errors of quantiles, one JSON line.
#include "base/metrics.hpp"

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(MetricsTest, SnapshotIsOneOrderedJsonLine) {
  Metrics metrics;
  metrics.counter("rows_trained").add(3);
  metrics.gauge("reward_mean").set(0.5);
  metrics.gauge("broken").set(std::numeric_limits<double>::quiet_NaN());
  metrics.histogram("step_ms").record(2.0);
  EXPECT_EQ(
      to_json_line(metrics.snapshot()),
      R"({"broken":null,"reward_mean":0.5,"rows_trained":3,)"
      R"("step_ms":{"count":1,"max":2.0,"min":2.0,"p50":2.0,"p90":2.0,"p99":2.0,"sum":2.0}})");
}

TEST(MetricsTest, OneNameIsOneInstrument) {
  Metrics metrics;
  Counter& counter = metrics.counter("rows_trained");
  EXPECT_EQ(&counter, &metrics.counter("rows_trained"));
  EXPECT_DEATH(metrics.gauge("rows_trained").set(1), "one name, two kinds");
  EXPECT_DEATH(metrics.counter("Rows trained").add(), "check failed");
}

TEST(MetricsTest, QuantilesAreAtMostAnEighthTooHigh) {
  Histogram histogram;
  for (int i = 1; i <= 10000; ++i) {
    histogram.record(i);
  }
  const HistogramSummary summary = histogram.summary();
  EXPECT_EQ(summary.count, 10000U);
  EXPECT_EQ(summary.sum, 10000.0 * 10001.0 / 2);
  EXPECT_EQ(summary.min, 1.0);
  EXPECT_EQ(summary.max, 10000.0);
  for (const auto& [found, truth] :
       {std::pair(summary.p50, 5000.0), {summary.p90, 9000.0}, {summary.p99, 9900.0}}) {
    EXPECT_GE(found, truth);
    EXPECT_LE(found, truth * 1.125);
  }
}

TEST(MetricsTest, HistogramAcceptsExtremesAndRefusesInvalidValues) {
  Histogram histogram;
  histogram.record(0.0);
  histogram.record(std::numeric_limits<double>::denorm_min());
  histogram.record(std::numeric_limits<double>::max());
  histogram.record(-1.0);
  histogram.record(std::numeric_limits<double>::infinity());
  histogram.record(std::nan(""));
  EXPECT_EQ(histogram.summary().count, 3U);
  EXPECT_EQ(histogram.summary().max, std::numeric_limits<double>::max());
  EXPECT_EQ(histogram.refused(), 3U);
  EXPECT_EQ(Histogram().summary().p99, 0.0);
}

TEST(MetricsTest, ThreadsLoseNothing) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 1000; ++i) {
        metrics.counter("rows_trained").add();
        metrics.histogram("step_ms").record(1.0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(metrics.snapshot().counters.at("rows_trained"), 4000U);
  EXPECT_EQ(metrics.snapshot().histograms.at("step_ms").count, 4000U);
}

}  // namespace
}  // namespace tidemill
