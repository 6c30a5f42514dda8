// SPDX-License-Identifier: Apache-2.0
// JSON Schemas of structs of every shape, word for word.
#include "base/schema/json_schema.hpp"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "base/schema/schema.hpp"

namespace tidemill::reef {

enum class Tide { kEbb, kFlood };

void describe(EnumSchema<Tide>& e) {
  e.name("ebb", Tide::kEbb, "It falls.").name("flood", Tide::kFlood, "It rises.");
}

struct Coral {
  double height = 0.5;
};
void describe(Schema<Coral>& s) {
  s.field("height", &Coral::height, "Its height.").above(0).at_most(2.5);
}

struct Wreck {
  std::string ship;
};
void describe(Schema<Wreck>& s) {
  s.field("ship", &Wreck::ship, "Its name.").required();
}

struct Thing {
  OneOf what{"coral", Coral{}};
  std::int8_t depth = 3;
};
void describe(Schema<Thing>& s) {
  s.one_of("kind", &Thing::what, "What it is.")
      .kind<Coral>("coral", "Grows.")
      .kind<Wreck>("wreck", "Rots.", /*implied_by=*/"ship");
  s.field("depth", &Thing::depth, "How deep.").unit("m");
}

struct Reef {
  Tide tide = Tide::kEbb;
  std::optional<Tide> last;
  std::uint64_t log_bytes = 8;
  std::optional<bool> open;
  std::vector<std::string> fish{"cod"};
  std::optional<Thing> thing;
  Wreck wreck;
};
void describe(Schema<Reef>& s) {
  s.field("tide", &Reef::tide, "Which way.");
  s.field("last", &Reef::last, "Before.");
  s.field("log_bytes", &Reef::log_bytes, "Size.").unit("bytes");
  s.field("open", &Reef::open, "Whether.");
  s.field("fish", &Reef::fish, "Which.").one_or_many();
  s.field("thing", &Reef::thing, "On it.");
  s.field("wreck", &Reef::wreck, "Under it.");
}

namespace {

using nlohmann::json;

json schema() {
  const auto described = Schema<Reef>::described();
  return json::parse(json_schema(described.structure(), "Reef").to_text());
}

TEST(JsonSchemaTest, IsADocumentOfDraft7ThatRefusesUnknownKeys) {
  EXPECT_EQ(schema().at("$schema"), "http://json-schema.org/draft-07/schema#");
  EXPECT_EQ(schema().at("title"), "Reef");
  EXPECT_EQ(schema().at("type"), "object");
  EXPECT_EQ(schema().at("additionalProperties"), false);
  // A struct is required if a key inside it is.
  EXPECT_EQ(schema().at("required"), json::parse(R"(["wreck"])"));
}

TEST(JsonSchemaTest, DescribesTypeLimitsDefaultAndMeaningOfEachKey) {
  const json keys = schema().at("properties");
  EXPECT_EQ(keys.at("tide"),
            json::parse(R"({"description": "Which way.\n\n- ebb: It falls.\n- flood: It rises.",
                            "enum": ["ebb", "flood"], "default": "ebb"})"));
  EXPECT_EQ(keys.at("last").at("enum"), json::parse(R"(["ebb", "flood", null])"));
  EXPECT_FALSE(keys.at("last").contains("default"));
  EXPECT_EQ(keys.at("log_bytes"),
            json::parse(R"({"description": "Size. Unit: bytes, or e.g. 64MiB.",
                            "anyOf": [{"type": "integer", "minimum": 0},
                                      {"type": "string",
                                       "pattern": "^(0|[1-9][0-9]*)(KiB|MiB|GiB|TiB)$"}],
                            "default": 8})"));
  EXPECT_EQ(keys.at("open").at("type"), json::parse(R"(["boolean", "null"])"));
  const json text = json::parse(R"({"type": ["string", "number", "boolean"]})");
  EXPECT_EQ(keys.at("fish").at("anyOf"), json({text, {{"type", "array"}, {"items", text}}}));
  EXPECT_EQ(keys.at("fish").at("default"), json::parse(R"(["cod"])"));
}

TEST(JsonSchemaTest, AStructWithKindsHasOneAlternativePerKind) {
  const json thing = schema().at("properties").at("thing");
  EXPECT_EQ(thing.at("type"), json::parse(R"(["object", "null"])"));
  EXPECT_EQ(thing.at("properties").at("kind").at("enum"), json::parse(R"(["coral", "wreck"])"));
  EXPECT_EQ(thing.at("properties").at("kind").at("default"), "coral");
  const json depth = json::parse(R"({"description": "How deep. Unit: m.", "type": "integer",
                                     "maximum": 127, "default": 3})");
  EXPECT_EQ(thing.at("anyOf").at(0),
            json({{"properties",
                   {{"kind", {{"const", "coral"}, {"description", "Grows."}}},
                    {"depth", depth},
                    {"height", json::parse(R"({"description": "Its height.", "type": "number",
                                               "exclusiveMinimum": 0, "maximum": 2.5,
                                               "default": 0.5})")}}},
                  {"additionalProperties", false}}));
  const json wreck = thing.at("anyOf").at(1);
  EXPECT_EQ(wreck.at("required"), json::parse(R"(["ship"])"));
  EXPECT_EQ(wreck.at("anyOf"), json::parse(R"([{"required": ["kind"]}, {"required": ["ship"]}])"));
}

}  // namespace
}  // namespace tidemill::reef
