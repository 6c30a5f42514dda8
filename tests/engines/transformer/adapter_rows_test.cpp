// SPDX-License-Identifier: Apache-2.0
// Tests that the rows of adapters are uploaded once per pass.
#include "engines/transformer/adapter_rows.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "engines/ops/profile/op_profile.hpp"
#include "engines/ops/reference/factory.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// First row, number of rows, number of the adapter.
using RunShape = std::array<std::int64_t, 3>;

std::vector<RunShape> shapes_of(const RunList& runs) {
  std::vector<RunShape> shapes;
  for (const RowRun& run : runs.pass->at(runs)) {
    shapes.push_back({run.first_row, run.num_rows, run.adapter});
  }
  return shapes;
}

// Records the operations of the reference, together with what they are recorded in.
struct Recorded {
  OpProfile profile;
  std::unique_ptr<Ops> ops = make_profiled_ops(make_reference_ops(), profile);
};

std::shared_ptr<Recorded> recorded;  // by the backend that was made last

std::shared_ptr<Ops> make_recorded() {
  recorded = std::make_shared<Recorded>();
  return {recorded, recorded->ops.get()};
}

class AdapterRowsTest : public ::testing::Test {
protected:
  [[nodiscard]] std::shared_ptr<const Adapter> lora(std::uint64_t seed) const {
    const AdapterSpec spec = lora_on_all(config_, 0);
    return harness_.adapter(spec, random_lora(spec, seed));
  }
  // Returns how many lists of a pass were uploaded until now.
  [[nodiscard]] static std::int64_t uploads() {
    return recorded->profile.records["prepare_pass"].calls;
  }
  [[nodiscard]] static std::int64_t products() {
    std::int64_t calls = 0;
    for (const auto& [name, record] : recorded->profile.records) {
      calls += name.starts_with("low rank") ? record.calls : 0;
    }
    return calls;
  }

  ModelConfig config_ = small_config({});
  TensorMap base_ = random_weights(config_, 61);
  ModelHarness harness_{{"recorded", make_recorded}, config_, base_};
};

TEST_F(AdapterRowsTest, RunsNumberAdaptersAndAreCutWhereRowsAreKept) {
  const auto first = lora(1);
  const auto second = lora(2);
  const std::array runs = {AdapterRun{first.get(), 1, 2}, AdapterRun{second.get(), 3, 2},
                           AdapterRun{first.get(), 6, 4}};
  PassContents contents;
  const AdapterRanges cut = add_adapters(runs, 7, contents);
  const AdapterRanges none_kept = add_adapters(std::span(runs).last(2), 10, contents);
  const AdapterRanges all_kept = add_adapters(runs, 0, contents);
  const auto pass = harness_.ops->prepare_pass(std::move(contents), nullptr).value();
  const AdapterLists lists = lists_at(cut, *pass);
  EXPECT_EQ(lists.adapters, (std::vector<const Adapter*>{first.get(), second.get()}));
  EXPECT_EQ(shapes_of(lists.runs), (std::vector<RunShape>{{1, 2, 0}, {3, 2, 1}, {6, 4, 0}}));
  EXPECT_EQ(shapes_of(lists.before_kept), (std::vector<RunShape>{{1, 2, 0}, {3, 2, 1}, {6, 1, 0}}));
  const AdapterLists others = lists_at(none_kept, *pass);
  EXPECT_EQ(others.adapters, (std::vector<const Adapter*>{second.get(), first.get()}));
  EXPECT_EQ(shapes_of(others.runs), (std::vector<RunShape>{{3, 2, 0}, {6, 4, 1}}));
  EXPECT_EQ(shapes_of(others.before_kept), shapes_of(others.runs));
  EXPECT_TRUE(lists_at(all_kept, *pass).before_kept.empty());
}

TEST_F(AdapterRowsTest, APassUploadsThemOnce) {
  RandomStream random(62);
  Batch batch;
  const std::array adapters = {lora(1), std::shared_ptr<const Adapter>(), lora(2), lora(1)};
  std::vector<std::vector<std::int32_t>> pages;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    pages.push_back(harness_.pages_for(5));
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const std::vector<std::int32_t> ids = random_ids(config_, 5, random);
    batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
    batch.segments.push_back({5, 0, pages[i], adapters[i].get()});
  }
  const std::int64_t before = uploads();
  const ConstMatrix hidden = harness_.model.forward(*harness_.weights, batch, *harness_.cache);
  EXPECT_EQ(uploads(), before + 1);
  EXPECT_EQ(products(), 7 * config_.num_layers);  // of each linear layer, for all adapters together
  EXPECT_FALSE(read_values(*harness_.ops, hidden).empty());
}

// The logits upload the runs only if an adapter changes the head.
TEST_F(AdapterRowsTest, LogitsUploadThemOnceIfTheHeadIsAdapted) {
  RandomStream random(63);
  const std::vector<std::int32_t> ids = random_ids(config_, 6, random);
  int adapted = 0;
  for (const AdapterSample& sample : adapter_samples()) {
    const AdapterSpec spec = spec_of(sample.config, config_);
    const auto adapter = harness_.adapter(spec, random_adapter(spec, config_, base_, 64));
    const Rows hidden = harness_.hidden(ids, adapter.get());
    const std::int64_t before = uploads();
    static_cast<void>(harness_.logits(hidden, adapter.get()));
    EXPECT_EQ(uploads(), before + (adapter->head() != nullptr ? 1 : 0)) << sample.name;
    adapted += adapter->head() != nullptr ? 1 : 0;
  }
  EXPECT_GT(adapted, 0);
}

}  // namespace
}  // namespace tidemill::engines
