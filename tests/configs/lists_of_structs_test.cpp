// SPDX-License-Identifier: Apache-2.0
// Tests lists of structs: single elements without brackets, elements in short form, and added
// kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/schema/reference.hpp"
#include "base/schema/schema.hpp"
#include "configs/yaml_tree.hpp"

namespace tidemill::kitchen {

struct Spice {
  std::string name;
  std::optional<double> grams;
};

void describe(Schema<Spice>& s) {
  s.field("name", &Spice::name, "What it is called.").required();
  s.field("grams", &Spice::grams, "How much.").above(0);
  s.short_for("name");
}

struct Boiling {
  std::int32_t minutes = 0;
};
void describe(Schema<Boiling>& s) {
  s.field("minutes", &Boiling::minutes, "How long.").required();
}

struct Frying {
  double heat = 0;
};
void describe(Schema<Frying>& s) {
  s.field("heat", &Frying::heat, "How hot.").at_least(1);
}

struct Stage {
  OneOf way{"boil", Boiling{}};
};
void describe(Schema<Stage>& s) {
  s.one_of("kind", &Stage::way, "What is done.").kind<Boiling>("boil", "In water.");
}

struct Dish {
  std::vector<Spice> spices{{"salt", 1.0}};
  std::vector<Stage> stages{Stage{}};
};
void describe(Schema<Dish>& s) {
  s.field("spices", &Dish::spices, "What goes in.").one_or_many();
  s.field("stages", &Dish::stages, "What is done, in order.").one_or_many();
}

namespace {

class ListsOfStructsTest : public ::testing::Test {
protected:
  Dish read(const std::string& yaml) {
    const auto tree = configs::parse_yaml(yaml, "dish.yaml");
    EXPECT_TRUE(tree.ok()) << tree.status().message();
    const auto dish = schema_.read(tree.value());
    EXPECT_TRUE(dish.ok()) << dish.status().message();
    return dish.ok() ? dish.value().value : Dish{};
  }
  std::string refusal(const std::string& yaml) {
    const auto tree = configs::parse_yaml(yaml, "dish.yaml");
    return tree.ok() ? schema_.read(tree.value()).status().message() : tree.status().message();
  }
  Schema<Dish> schema_ = Schema<Dish>::described();
};

constexpr const char* kBoil = "stages: {minutes: 3}\n";

TEST_F(ListsOfStructsTest, AnElementMayBeWrittenWithoutBracketsOrInShortForm) {
  const Dish one = read(std::string("spices: pepper\n") + kBoil);
  ASSERT_EQ(one.spices.size(), 1U);
  EXPECT_EQ(one.spices[0].name, "pepper");
  EXPECT_FALSE(one.spices[0].grams);
  const Dish braced = read(std::string("spices: {name: mace, grams: 2}\n") + kBoil);
  ASSERT_EQ(braced.spices.size(), 1U);
  EXPECT_EQ(braced.spices[0].grams, 2.0);
  const Dish mixed =
      read(std::string("spices: [pepper, {name: mace, grams: 0.5}, 'salt']\n") + kBoil);
  ASSERT_EQ(mixed.spices.size(), 3U);
  EXPECT_EQ(mixed.spices[1].name, "mace");
  EXPECT_EQ(mixed.spices[2].name, "salt");
  ASSERT_EQ(mixed.stages.size(), 1U);
  EXPECT_EQ(mixed.stages[0].way.get<Boiling>()->minutes, 3);
}

TEST_F(ListsOfStructsTest, MissingListsKeepTheirDefaultElements) {
  EXPECT_EQ(read("spices: pepper\n").stages.at(0).way.get<Boiling>()->minutes, 0);
  EXPECT_EQ(refusal("stages: {kind: boil}\n"),
            "dish.yaml:1: stages.minutes: missing; needs an integer");
  const Dish dish = read(kBoil);
  ASSERT_EQ(dish.spices.size(), 1U);
  EXPECT_EQ(dish.spices[0].name, "salt");
}

TEST_F(ListsOfStructsTest, MistakesAreNamedByTheirIndexInTheList) {
  EXPECT_EQ(refusal(std::string("spices: [a, {grams: 1}]\n") + kBoil),
            "dish.yaml:1: spices[1].name: missing; needs text");
  EXPECT_EQ(refusal(std::string("spices: {grams: 1}\n") + kBoil),
            "dish.yaml:1: spices.name: missing; needs text");
  EXPECT_EQ(refusal(std::string("spices:\n  - a\n  - {name: b, grams: 0}\n") + kBoil),
            "dish.yaml:3: spices[1].grams: needs a finite number above 0, found 0");
  EXPECT_EQ(refusal(std::string("spices: [[a]]\n") + kBoil),
            "dish.yaml:1: spices[0]: needs text, or keys and values (name, grams), found a list");
}

TEST_F(ListsOfStructsTest, PrintsTheShortFormIfItIsComplete) {
  Dish dish;
  dish.spices = {{"pepper", std::nullopt}, {"mace", 2.0}};
  EXPECT_EQ(to_flow_text(schema_.print(dish)),
            "{spices: [pepper, {name: mace, grams: 2}], stages: [{kind: boil, minutes: 0}]}");
  const std::string explained = explain_key(schema_.structure(), "spices").value();
  EXPECT_THAT(explained, ::testing::HasSubstr("text, or keys and values, or a list of these"));
}

TEST_F(ListsOfStructsTest, KindsCanBeAddedToTheElements) {
  ASSERT_TRUE(schema_.add_kind<Frying>("stages", "fry", "In oil.").ok());
  const Dish dish = read("stages: [{minutes: 3}, {kind: fry, heat: 7}]\n");
  ASSERT_EQ(dish.stages.size(), 2U);
  EXPECT_EQ(dish.stages[1].way.get<Frying>()->heat, 7.0);
}

}  // namespace
}  // namespace tidemill::kitchen
