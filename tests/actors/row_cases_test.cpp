// SPDX-License-Identifier: Apache-2.0
// Rows to train on give the tokens and targets of another trainer (see make_row_cases.py).
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/data/text_codec.hpp"
#include "storage/dataset/row_parser.hpp"

namespace tidemill::test {
namespace {

using CaseJson = nlohmann::json;

TEST(RowCases, GiveTheTokensAndTargetsOfTheReference) {
  std::ifstream file(TIDEMILL_TEST_DIR "/actors/row_cases.json");
  ASSERT_TRUE(file);
  const CaseJson golden = CaseJson::parse(file);
  int rows = 0;
  for (const CaseJson& model : golden.at("models")) {
    const auto name = model.at("model").get<std::string>();
    SCOPED_TRACE(name);
    const auto codec = actors::TextCodec::load(TIDEMILL_TEST_DIR "/golden/engine/models/" + name,
                                               golden.at("now").get<std::string>());
    ASSERT_TRUE(codec.ok()) << codec.status().to_string();
    for (const CaseJson& item : model.at("cases")) {
      const auto text = item.at("row").get<std::string>();
      SCOPED_TRACE(text);
      const auto row = storage::parse_supervised_row(text);
      ASSERT_TRUE(row.ok()) << row.status().to_string();
      const auto tokens = codec.value().supervised(row.value());
      ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
      EXPECT_EQ(tokens.value().ids, item.at("ids").get<std::vector<std::int32_t>>());
      ASSERT_EQ(tokens.value().loss_mask.size(), tokens.value().ids.size());
      std::vector<std::size_t> targets;
      for (std::size_t t = 1; t < tokens.value().loss_mask.size(); ++t) {
        if (tokens.value().loss_mask[t] != 0) {
          targets.push_back(t);
        }
      }
      EXPECT_EQ(targets, item.at("targets").get<std::vector<std::size_t>>());
      ++rows;
    }
  }
  EXPECT_EQ(rows, 84);
  std::cout << "rows compared: " << rows << "\n";
}

}  // namespace
}  // namespace tidemill::test
