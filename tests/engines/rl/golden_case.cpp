// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/rl/golden_case.hpp"

#include <algorithm>
#include <fstream>
#include <iostream>

namespace tidemill::engines::golden {
namespace {

void flatten(const Json& value, std::vector<double>& out) {
  if (value.is_array()) {
    for (const Json& inner : value) {
      flatten(inner, out);
    }
    return;
  }
  out.push_back(value.get<double>());
}

std::string code_word(const Status& status) {
  return status.message().substr(0, status.message().find(':'));
}

}  // namespace

const Json* CaseOptions::take(const std::string& name) {
  if (!options_.contains(name)) {
    return nullptr;
  }
  read_.insert(name);
  return &options_.at(name);
}

void CaseOptions::fail(std::string_view code, const std::string& name) {
  keep_first(refuse(code, name));
}

void CaseOptions::keep_first(Status status) {
  if (status_.ok()) {
    status_ = std::move(status);
  }
}

void CaseOptions::read(const std::string& name, double& value) {
  if (const Json* json = take(name)) {
    json->is_number() ? void(value = json->get<double>()) : fail(kBadOption, name);
  }
}

void CaseOptions::read(const std::string& name, int& value) {
  std::int64_t wide = value;
  read(name, wide);
  value = static_cast<int>(wide);
}

void CaseOptions::read(const std::string& name, std::int64_t& value) {
  if (const Json* json = take(name)) {
    const bool whole = json->is_number() && json->get<double>() == std::floor(json->get<double>());
    whole ? void(value = static_cast<std::int64_t>(json->get<double>())) : fail(kBadOption, name);
  }
}

void CaseOptions::read(const std::string& name, bool& value) {
  if (const Json* json = take(name)) {
    json->is_boolean() ? void(value = json->get<bool>()) : fail(kBadOption, name);
  }
}

void CaseOptions::read(const std::string& name, std::optional<double>& value) {
  if (options_.contains(name) && options_.at(name).is_null()) {
    take(name);
    value.reset();
  } else if (options_.contains(name)) {
    read(name, value.emplace());
  }
}

void CaseOptions::read(const std::string& name, std::optional<std::int64_t>& value) {
  if (options_.contains(name) && options_.at(name).is_null()) {
    take(name);
    value.reset();
  } else if (options_.contains(name)) {
    read(name, value.emplace());
  }
}

Status CaseOptions::finish() {
  for (const auto& [name, value] : options_.items()) {
    if (!read_.contains(name)) {
      return refuse("unknown_option", name);
    }
  }
  return status_;
}

Json read_family(const std::string& family) {
  const std::string path = std::string(TIDEMILL_TEST_DIR "/golden/rl/") + family + ".json";
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return Json::parse(file);
}

void compare(const Json& test_case, const Outcome& got, double tolerance, bool as_float,
             Tally& tally) {
  if (test_case.contains("error")) {
    EXPECT_FALSE(got.status.ok());
    EXPECT_EQ(code_word(got.status), test_case.at("error").get<std::string>())
        << got.status.to_string();
    return;
  }
  ASSERT_TRUE(got.status.ok()) << got.status.to_string();
  std::vector<std::string> exact;
  if (test_case.contains("exact")) {
    exact = test_case.at("exact").get<std::vector<std::string>>();
  }
  for (const auto& [name, want_json] : test_case.at("out").items()) {
    SCOPED_TRACE(name);
    std::vector<double> want;
    flatten(want_json, want);
    ASSERT_TRUE(got.values.contains(name));
    const std::vector<double>& values = got.values.at(name);
    ASSERT_EQ(values.size(), want.size());
    const bool is_exact = std::find(exact.begin(), exact.end(), name) != exact.end();
    tally.exact_fields += is_exact ? 1 : 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      ++tally.numbers;
      if (is_exact) {
        const double wanted = as_float ? static_cast<float>(want[i]) : want[i];
        ASSERT_EQ(values[i], wanted) << "[" << i << "]";  // zeros of either sign are equal
      } else {
        ASSERT_LE(std::abs(values[i] - want[i]), tolerance * (1.0 + std::abs(want[i])))
            << "[" << i << "] got " << values[i] << " want " << want[i];
      }
    }
  }
}

void report(const std::string& family, const Tally& tally, int expected_cases) {
  std::cout << "golden rl/" << family << ": " << tally.cases << " cases (" << tally.refusals
            << " refusals, " << tally.f64_only << " in float64 only), " << tally.runs_f64
            << " runs in float64, " << tally.runs_f32 << " in float32, " << tally.numbers
            << " numbers, " << tally.exact_fields << " exact fields\n";
  ::testing::Test::RecordProperty("cases", tally.cases);
  EXPECT_EQ(tally.cases, expected_cases);
}

}  // namespace tidemill::engines::golden
