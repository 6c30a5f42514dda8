// SPDX-License-Identifier: Apache-2.0
// Schemas: what is read, refused, printed and explained for structs of every shape.
#include "base/schema/schema.hpp"

#include <initializer_list>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json/json.hpp"
#include "base/schema/reference.hpp"
#include "base/schema/suggest.hpp"

namespace tidemill::harbor {

enum class Tide { kEbb, kFlood };

void describe(EnumSchema<Tide>& e) {
  e.name("ebb", Tide::kEbb, "Water leaves.").name("flood", Tide::kFlood, "Water comes.");
}

struct Pier {
  std::string name;
  std::int32_t length = 10;
  friend bool operator==(const Pier&, const Pier&) = default;
};

void describe(Schema<Pier>& s) {
  s.field("name", &Pier::name, "What sailors call it.").required();
  s.field("length", &Pier::length, "How long it is.").range(1, 500).unit("m");
}

struct Crane {
  double load = 2.5;
  std::int64_t rope_bytes = 0;
};

void describe(Schema<Crane>& s) {
  s.field("load", &Crane::load, "What it lifts.").above(0).at_most(100);
  s.field("rope_bytes", &Crane::rope_bytes, "Length of its log.").at_least(0).unit("bytes");
  s.check("load", [](const Crane& c) { return c.load == 13 ? "is unlucky" : ""; });
}

struct Ferry {
  std::vector<std::string> stops{"north"};
};

void describe(Schema<Ferry>& s) {
  s.field("stops", &Ferry::stops, "Where it stops.").one_or_many();
}

struct Work {
  OneOf gear{"crane", Crane{}};
  bool paid = true;
};

void describe(Schema<Work>& s) {
  s.one_of("kind", &Work::gear, "What works here.")
      .kind<Crane>("crane", "Lifts.")
      .kind<Ferry>("ferry", "Carries.", /*implied_by=*/"stops");
  s.field("paid", &Work::paid, "Whether anybody pays.");
}

struct Recipe {
  std::string name = "plain";
  double salt = 0.1;
  std::int32_t minutes = 5;
};

void describe(Schema<Recipe>& s) {
  s.presets("name", &Recipe::name, "Which one.")
      .preset("plain", "As it is.", {})
      .preset("sea", "With sea water.", {.salt = 3.5});
  s.field("salt", &Recipe::salt, "Grams.").range(0, 10);
  s.field("minutes", &Recipe::minutes, "Time.").at_least(1);
}

struct Harbor {
  std::string name = "old";
  Tide tide = Tide::kEbb;
  std::optional<std::uint64_t> seed;
  std::optional<Pier> pier;
  std::vector<Pier> moles;
  Work work;
  Recipe soup;
  std::int8_t depth = 3;
};

void describe(Schema<Harbor>& s) {
  s.field("name", &Harbor::name, "Its name.");
  s.field("tide", &Harbor::tide, "Which way water flows.");
  s.field("seed", &Harbor::seed, "Starts the waves.");
  s.field("pier", &Harbor::pier, "The pier, if any.");
  s.field("moles", &Harbor::moles, "Further piers.");
  s.field("work", &Harbor::work, "What is done.");
  s.field("soup", &Harbor::soup, "What is eaten.");
  s.field("depth", &Harbor::depth, "Depth.").unit("m");
  s.check("pier.length", [](const Harbor& h) {
    return h.pier && h.pier->length > 10 * h.depth ? "is too long for the depth" : "";
  });
  s.warn("tide", [](const Harbor& h) {
    return h.tide == Tide::kFlood && h.depth == 0 ? "floods a dry harbor" : "";
  });
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Trees built by hand. Every node gets the next line, in the order of construction.
struct Build {
  std::shared_ptr<const std::string> source = std::make_shared<const std::string>("h.yaml");
  int line = 0;

  ConfigNode leaf(ConfigNode::Kind kind, std::string text) {
    ConfigNode node;
    node.kind = kind;
    node.location = {source, ++line};
    node.text = std::move(text);
    return node;
  }
  ConfigNode plain(std::string text) { return leaf(ConfigNode::Kind::kPlain, std::move(text)); }
  ConfigNode quoted(std::string text) { return leaf(ConfigNode::Kind::kQuoted, std::move(text)); }
  ConfigNode null() { return leaf(ConfigNode::Kind::kNull, ""); }
  ConfigNode list(std::initializer_list<ConfigNode> items) {
    ConfigNode node = leaf(ConfigNode::Kind::kList, "");
    node.items = items;
    return node;
  }
  ConfigNode map(std::initializer_list<std::pair<std::string, ConfigNode>> entries) {
    ConfigNode node;
    node.kind = ConfigNode::Kind::kMap;
    node.location = {source, entries.size() == 0 ? line : entries.begin()->second.location.line};
    for (const auto& [key, value] : entries) {
      node.entries.push_back({key, value.location, value});
    }
    return node;
  }
};

class SchemaTest : public ::testing::Test {
protected:
  std::string error_of(const ConfigNode& node) {
    const auto result = schema_.read(node);
    return result.ok() ? "ok" : result.status().message();
  }
  Schema<Harbor> schema_ = Schema<Harbor>::described();
  Build b_;
};

TEST_F(SchemaTest, EmptyMapGivesInitialValues) {
  const auto result = schema_.read(b_.map({}));
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Harbor& harbor = result.value().value;
  EXPECT_EQ(harbor.name, "old");
  EXPECT_EQ(harbor.depth, 3);
  EXPECT_FALSE(harbor.seed);
  EXPECT_FALSE(harbor.pier);
  ASSERT_NE(harbor.work.gear.get<Crane>(), nullptr);
  EXPECT_EQ(harbor.work.gear.get<Crane>()->load, 2.5);
  EXPECT_EQ(harbor.work.gear.get<Ferry>(), nullptr);
  EXPECT_TRUE(result.value().warnings.empty());
}

TEST_F(SchemaTest, ReadsEveryShape) {
  const auto result = schema_.read(b_.map({
      {"name", b_.quoted("3")},
      {"tide", b_.plain("flood")},
      {"seed", b_.plain("9223372036854775807")},
      {"pier", b_.map({{"name", b_.plain("east")}, {"length", b_.plain("30")}})},
      {"moles", b_.list({b_.map({{"name", b_.plain("a")}}), b_.map({{"name", b_.plain("b")}})})},
      {"work", b_.map({{"stops", b_.plain("south")}, {"paid", b_.plain("false")}})},
      {"soup", b_.map({{"minutes", b_.plain("+7")}, {"name", b_.plain("sea")}})},
  }));
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Harbor& harbor = result.value().value;
  EXPECT_EQ(harbor.name, "3");
  EXPECT_EQ(harbor.tide, Tide::kFlood);
  EXPECT_EQ(harbor.seed, 9223372036854775807U);
  EXPECT_EQ(harbor.pier, (Pier{"east", 30}));
  EXPECT_THAT(harbor.moles, ElementsAre(Pier{"a", 10}, Pier{"b", 10}));
  ASSERT_NE(harbor.work.gear.get<Ferry>(), nullptr);  // implied by `stops`
  EXPECT_THAT(harbor.work.gear.get<Ferry>()->stops, ElementsAre("south"));
  EXPECT_FALSE(harbor.work.paid);
  // The preset is chosen first, wherever its name is written; then keys override it.
  EXPECT_EQ(harbor.soup.name, "sea");
  EXPECT_EQ(harbor.soup.salt, 3.5);
  EXPECT_EQ(harbor.soup.minutes, 7);
}

TEST_F(SchemaTest, NullEmptiesAnOptional) {
  const auto result = schema_.read(b_.map({{"pier", b_.null()}, {"seed", b_.null()}}));
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result.value().value.pier);
}

TEST_F(SchemaTest, RefusalsNameLocationKeyAndProblem) {
  struct Case {
    ConfigNode node;
    std::string message;
  };
  const auto one = [this](std::string key, ConfigNode value) {
    return b_.map({{std::move(key), std::move(value)}});
  };
  const auto at = [this](std::string_view rest) {
    return "h.yaml:" + std::to_string(b_.line) + ": " + std::string(rest);
  };
  std::vector<Case> cases;
  const auto add = [&](ConfigNode node, std::string_view rest) {
    cases.push_back({std::move(node), at(rest)});
  };
  add(one("nmae", b_.plain("x")), "nmae: unknown key; did you mean name?");
  add(one("zzz", b_.plain("x")),
      "zzz: unknown key; known keys: name, tide, seed, pier, moles, work, soup, depth");
  add(one("minutes", b_.plain("1")), "minutes: unknown key; did you mean soup.minutes?");
  add(one("depth", b_.plain("1.0")), "depth: needs an integer (m), found 1.0");
  add(one("depth", b_.plain("1e2")), "depth: needs an integer (m), found 1e2");
  add(one("depth", b_.plain("007")), "depth: needs an integer (m), found 007");
  add(one("depth", b_.plain("128")), "depth: needs an integer (m), found 128");
  add(one("depth", b_.plain("-129")), "depth: needs an integer (m), found -129");
  add(one("depth", b_.quoted("1")), "depth: needs an integer (m), found \"1\"");
  add(one("depth", b_.null()), "depth: needs an integer (m), found nothing");
  add(one("depth", b_.list({})), "depth: needs an integer (m), found a list");
  add(one("seed", b_.plain("-1")), "seed: needs an integer, found -1");
  add(one("seed", b_.plain("9223372036854775808")),
      "seed: needs an integer, found 9223372036854775808");
  add(one("tide", b_.plain("ebbb")),
      "tide: needs one of: ebb, flood, found ebbb; did you mean ebb?");
  add(one("work", b_.map({{"paid", b_.plain("yes")}})),
      "work.paid: needs true or false, found yes");
  add(one("work", b_.map({{"load", b_.plain(".nan")}})),
      "work.load: needs a finite number above 0, at most 100, found .nan");
  add(one("work", b_.map({{"load", b_.plain("inf")}})),
      "work.load: needs a finite number above 0, at most 100, found inf");
  add(one("work", b_.map({{"load", b_.plain("1e999")}})),
      "work.load: needs a finite number above 0, at most 100, found 1e999");
  add(one("work", b_.map({{"load", b_.plain("0")}})),
      "work.load: needs a finite number above 0, at most 100, found 0");
  add(one("work", b_.map({{"load", b_.plain("100.5")}})),
      "work.load: needs a finite number above 0, at most 100, found 100.5");
  add(one("work", b_.map({{"load", b_.plain("13")}})), "work.load: is unlucky");
  add(one("work", b_.map({{"rope_bytes", b_.plain("9999999999TiB")}})),
      "work.rope_bytes: needs a number of bytes of at least 0 (KiB, MiB, GiB or TiB may "
      "follow), found 9999999999TiB");
  add(one("work", b_.map({{"kind", b_.plain("cran")}})),
      "work.kind: needs one of: crane, ferry, found cran; did you mean crane?");
  add(one("work", b_.plain("crane")),
      "work: needs keys and values (kind, paid, ...), found crane; did you mean {kind: crane}?");
  add(one("pier", b_.map({{"length", b_.plain("30")}})), "pier.name: missing; needs text");
  add(one("pier", b_.map({{"name", b_.plain("p")}, {"length", b_.plain("31")}})),
      "pier.length: is too long for the depth");
  add(one("moles", b_.list({b_.map({{"name", b_.list({})}})})), "");
  cases.back().message =
      "h.yaml:" + std::to_string(b_.line - 1) + ": moles[0].name: needs text, found a list";
  add(one("soup", b_.map({{"name", b_.plain("stew")}})),
      "soup.name: needs one of: plain, sea, found stew");
  add(one(std::string(200, 'k') + "\n", b_.plain("1")),
      std::string(60, 'k') +
          "...: unknown key; known keys: name, tide, seed, pier, moles, work, soup, depth");
  for (const Case& c : cases) {
    EXPECT_EQ(error_of(c.node), c.message);
  }
}

// Values at the limits of a key are accepted, and the next ones are not.
TEST_F(SchemaTest, LimitsIncludeTheirBounds) {
  const auto reads = [this](std::string_view part, std::string_view key, std::string text) {
    ConfigNode value = b_.plain(std::move(text));
    if (part.empty()) {
      return schema_.read(b_.map({{std::string(key), value}})).ok();
    }
    ConfigNode inner = b_.map({{std::string(key), value}});
    if (part == "pier") {
      inner = b_.map({{"name", b_.plain("p")}, {std::string(key), value}});
      return schema_.read(b_.map({{"depth", b_.plain("100")}, {"pier", inner}})).ok();
    }
    return schema_.read(b_.map({{std::string(part), inner}})).ok();
  };
  EXPECT_TRUE(reads("pier", "length", "1"));
  EXPECT_TRUE(reads("pier", "length", "500"));
  EXPECT_FALSE(reads("pier", "length", "0"));
  EXPECT_FALSE(reads("pier", "length", "501"));
  EXPECT_TRUE(reads("soup", "salt", "0"));
  EXPECT_TRUE(reads("soup", "salt", "10"));
  EXPECT_FALSE(reads("soup", "salt", "-0.001"));
  EXPECT_FALSE(reads("soup", "salt", "10.001"));
  EXPECT_TRUE(reads("work", "load", "1e-300"));  // above 0
  EXPECT_FALSE(reads("work", "load", "0"));
  EXPECT_TRUE(reads("work", "load", "100"));
  EXPECT_TRUE(reads("work", "rope_bytes", "8388607TiB"));  // the largest that fits
  EXPECT_FALSE(reads("work", "rope_bytes", "8388608TiB"));
  EXPECT_TRUE(reads("", "depth", "127"));
  EXPECT_TRUE(reads("", "depth", "-128"));
  EXPECT_FALSE(reads("", "depth", "128"));
}

TEST_F(SchemaTest, AListHasAtMostTenThousandElements) {
  ConfigNode list = b_.list({});
  list.items.assign(10'000, b_.plain("x"));
  const auto whole = schema_.read(b_.map({{"work", b_.map({{"stops", list}})}}));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(whole.value().value.work.gear.get<Ferry>()->stops.size(), 10'000U);
  list.items.push_back(b_.plain("x"));
  EXPECT_THAT(error_of(b_.map({{"work", b_.map({{"stops", list}})}})),
              HasSubstr("work.stops: needs at most 10000 elements, found 10001"));
}

TEST(ClosestName, ComparesLettersThenWordsThenInitials) {
  const std::vector<std::string> names{"learning_rate", "max_new_tokens", "timeout_ms", "alpha",
                                       "group_size"};
  const auto closest = [&names](std::string_view text) {
    return schema::closest_name(text, names);
  };
  EXPECT_EQ(closest("leraning_rate"), "learning_rate");
  EXPECT_EQ(closest("learningRate"), "learning_rate");
  EXPECT_EQ(closest("GROUP-SIZE"), "group_size");
  EXPECT_EQ(closest("timeout"), "timeout_ms");
  EXPECT_EQ(closest("max_tokens"), "max_new_tokens");
  EXPECT_EQ(closest("lora_alpha"), "alpha");
  EXPECT_EQ(closest("lr"), "learning_rate");
  EXPECT_EQ(closest("tokens_max"), "");
  EXPECT_EQ(closest("_"), "");
  EXPECT_EQ(closest(""), "");
  EXPECT_EQ(closest("banana"), "");
}

// Two neighboring letters that are exchanged are one mistake, like a letter that is left out, added
// or replaced. The shortest names allow only one.
TEST(ClosestName, FindsANameWithOneMistakeAtAnyLetter) {
  const std::vector<std::string> names{"seed", "top_p", "alpha", "group_size", "learning_rate"};
  for (const std::string& name : names) {
    const auto expect_found = [&](const std::string& text) {
      EXPECT_EQ(schema::closest_name(text, names), name) << text;
    };
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::string swapped = name;
      if (i + 1 < name.size()) {
        std::swap(swapped[i], swapped[i + 1]);
      }
      expect_found(swapped);
      expect_found(name.substr(0, i) + name.substr(i + 1));
      expect_found(name.substr(0, i) + 'q' + name.substr(i));
      expect_found(name.substr(0, i) + 'q' + name.substr(i + 1));
    }
    expect_found(name + 'q');
  }
}

TEST_F(SchemaTest, KeyOfAnotherKindIsNamed) {
  EXPECT_EQ(
      error_of(b_.map({{"work", b_.map({{"kind", b_.plain("crane")}, {"stops", b_.plain("x")}})}})),
      "h.yaml:2: work.stops: belongs to kind ferry, not to crane");
}

TEST_F(SchemaTest, FirstMistakeOfTheFileIsReported) {
  EXPECT_EQ(error_of(b_.map({{"depth", b_.plain("x")}, {"nmae", b_.plain("x")}})),
            "h.yaml:1: depth: needs an integer (m), found x");
  b_.line = 0;
  EXPECT_EQ(error_of(b_.map({{"nmae", b_.plain("x")}, {"depth", b_.plain("x")}})),
            "h.yaml:1: nmae: unknown key; did you mean name?");
}

TEST_F(SchemaTest, WarningsAreCollected) {
  const auto result = schema_.read(b_.map({{"depth", b_.plain("0")}, {"tide", b_.plain("flood")}}));
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result.value().warnings, ElementsAre("h.yaml:2: tide: floods a dry harbor"));
}

TEST_F(SchemaTest, PrintsTextThatReadsBack) {
  Harbor harbor;
  harbor.name = "a \"b\"\n: #";
  harbor.seed = 7;
  harbor.pier = Pier{"true", 3};
  harbor.moles = {{"x", 1}};
  harbor.work.gear = OneOf("ferry", Ferry{{"n", "s"}});
  harbor.soup.name = "sea";
  const ConfigNode tree = schema_.print(harbor);
  EXPECT_EQ(to_block_text(tree),
            "name: \"a \\\"b\\\"\\n: #\"\n"
            "tide: ebb\n"
            "seed: 7\n"
            "pier:\n"
            "  name: \"true\"\n"
            "  length: 3\n"
            "moles: [{name: x, length: 1}]\n"
            "work:\n"
            "  kind: ferry\n"
            "  paid: true\n"
            "  stops: [n, s]\n"
            "soup:\n"
            "  name: sea\n"
            "  salt: 0.1\n"
            "  minutes: 5\n"
            "depth: 3\n");
  const auto again = schema_.read(tree);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(to_block_text(schema_.print(again.value().value)), to_block_text(tree));
}

struct Buoy {
  std::int32_t bells = 1;
};

void describe(Schema<Buoy>& s) {
  s.field("bells", &Buoy::bells, "How many.").range(0, 3);
}

TEST_F(SchemaTest, KindsAndPresetsCanBeAdded) {
  ASSERT_TRUE(schema_.add_kind<Buoy>("work", "buoy", "Floats.").ok());
  Recipe burnt;
  burnt.minutes = 90;
  ASSERT_TRUE(schema_.add_preset<Recipe>("soup", "burnt", "Forgotten.", burnt).ok());
  const auto result =
      schema_.read(b_.map({{"work", b_.map({{"kind", b_.plain("buoy")}, {"bells", b_.plain("2")}})},
                           {"soup", b_.map({{"name", b_.plain("burnt")}})}}));
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_NE(result.value().value.work.gear.get<Buoy>(), nullptr);
  EXPECT_EQ(result.value().value.work.gear.get<Buoy>()->bells, 2);
  EXPECT_EQ(result.value().value.soup.minutes, 90);
  EXPECT_EQ(result.value().value.soup.name, "burnt");  // the name among the values was "plain"

  EXPECT_EQ(schema_.add_kind<Buoy>("work", "buoy", "").code(), Errc::kInvalidArgument);
  EXPECT_EQ(schema_.add_kind<Buoy>("soup", "buoy", "").code(), Errc::kNotFound);
  EXPECT_EQ(schema_.add_kind<Buoy>("sea", "buoy", "").code(), Errc::kNotFound);
  EXPECT_EQ(schema_.add_preset<Buoy>("soup", "x", "", {}).code(), Errc::kNotFound);
  EXPECT_EQ(schema_.add_kind<Work>("work", "clash", "").message(),
            "kind clash: redefines the key paid that all kinds share");
}

// -- names of other programs and free maps --------------------------------------------------------

struct Lamp {
  std::int32_t flashes = 2;
  double height = 30.0;
};

void describe(Schema<Lamp>& s) {
  s.field("flashes", &Lamp::flashes, "How many.").also_called({"blinks", "pulse_count"});
  s.field("height", &Lamp::height, "How high.");
}

struct Lighthouse {
  Lamp lamp;
  ConfigNode signs{ConfigNode::Kind::kMap, {}, {}, {}, {}};
};

void describe(Schema<Lighthouse>& s) {
  s.field("lamp", &Lighthouse::lamp, "What shines.");
  s.field("signs", &Lighthouse::signs, "What is painted on it.");
  s.absent({"fog_horn", "siren"}, "a lighthouse makes no sound");
}

class LighthouseTest : public ::testing::Test {
protected:
  std::string error_of(const ConfigNode& node) {
    const auto result = schema_.read(node);
    return result.ok() ? "ok" : result.status().message();
  }
  Schema<Lighthouse> schema_ = Schema<Lighthouse>::described();
  Build b_;
};

TEST_F(LighthouseTest, NamesOfOtherProgramsSuggestTheKey) {
  EXPECT_EQ(error_of(b_.map({{"pulse_count", b_.plain("3")}})),
            "h.yaml:1: pulse_count: unknown key; did you mean lamp.flashes?");
  b_.line = 0;
  EXPECT_EQ(error_of(b_.map({{"lamp", b_.map({{"Pulse-Count", b_.plain("3")}})}})),
            "h.yaml:1: lamp.Pulse-Count: unknown key; did you mean flashes?");
  b_.line = 0;
  EXPECT_EQ(error_of(b_.map({{"lamp", b_.map({{"siren", b_.plain("3")}})}})),
            "h.yaml:1: lamp.siren: unknown key; a lighthouse makes no sound");
}

TEST_F(LighthouseTest, APathIsFoundByTheNameOfAnotherProgramOrTheOnlyKey) {
  const schema::StructSchema& all = schema_.structure();
  EXPECT_EQ(schema::path_of_name(all, "Pulse-Count"), "lamp.flashes");
  EXPECT_EQ(schema::path_of_name(all, "height"), "lamp.height");
  EXPECT_EQ(schema::path_of_name(all, "siren"), "");
}

TEST_F(LighthouseTest, AnExplanationGivesTheNamesOfOtherPrograms) {
  EXPECT_EQ(explain_key(schema_.structure(), "lamp.flashes").value(),
            "lamp.flashes: an integer, default 2\n  How many.\n"
            "  Other programs call it blinks, pulse_count.\n");
}

TEST_F(LighthouseTest, AnExplanationSaysWhyASettingOfOtherProgramsIsAbsent) {
  EXPECT_EQ(explain_key(schema_.structure(), "Fog-Horn").status().message(),
            "Fog-Horn: unknown key; a lighthouse makes no sound");
}

TEST_F(LighthouseTest, AFreeMapKeepsAnyKeysAndValues) {
  const auto result = schema_.read(b_.map(
      {{"signs", b_.map({{"on", b_.plain("false")},
                         {"year", b_.quoted("1850")},
                         {"parts", b_.list({b_.plain("1.5"), b_.plain("red"), b_.null()})}})}}));
  ASSERT_TRUE(result.ok()) << result.status().message();
  const ConfigNode tree = schema_.print(result.value().value);
  EXPECT_EQ(to_flow_text(tree.find("signs")->value),
            "{on: false, year: \"1850\", parts: [1.5, red, null]}");
  EXPECT_EQ(json_of(tree.find("signs")->value).to_line(),
            R"({"on":false,"year":"1850","parts":[1.5,"red",null]})"
            "\n");
  EXPECT_EQ(to_flow_text(schema_.print({}).find("signs")->value), "{}");
  EXPECT_EQ(error_of(b_.map({{"signs", b_.null()}})), "ok");
  b_.line = 0;
  EXPECT_EQ(error_of(b_.map({{"signs", b_.plain("red")}})),
            "h.yaml:1: signs: needs keys and values, found red");
  EXPECT_EQ(explain_key(schema_.structure(), "signs").value(),
            "signs: keys and values, default {}\n  What is painted on it.\n");
}

TEST_F(SchemaTest, ExplainsKeys) {
  const auto explain = [this](std::string_view key) {
    const auto text = explain_key(schema_.structure(), key);
    return text.ok() ? text.value() : text.status().message();
  };
  EXPECT_EQ(explain("pier.length"),
            "pier.length: an integer from 1 to 500 (m), default 10\n  How long it is.\n");
  EXPECT_EQ(explain("tide"),
            "tide: one of: ebb, flood, default ebb\n  Which way water flows.\n"
            "    ebb: Water leaves.\n    flood: Water comes.\n");
  EXPECT_EQ(explain("work.stops"),
            "work.stops: text, or a list of these, default [north]  [work.kind: ferry]\n"
            "  Where it stops.\n");
  EXPECT_EQ(explain("soup.name"),
            "soup.name: one of: plain, sea, default plain\n  Which one.\n"
            "    plain: As it is.\n    sea: With sea water. Sets salt 3.5.\n");
  EXPECT_EQ(explain("moles[].name"), "moles[].name: text, required\n  What sailors call it.\n");
  EXPECT_THAT(explain("pier"), HasSubstr("pier.name: text, required"));
  EXPECT_EQ(explain("work.lod"), "work.lod: unknown key; did you mean work.load?");
  EXPECT_EQ(explain("bread"), "bread: unknown key");
  EXPECT_EQ(explain("length"), "length: unknown key; did you mean pier.length?");
}

TEST_F(SchemaTest, ListsEveryKeyOnce) {
  std::vector<std::string> paths;
  for (const KeyReference& key : list_keys(schema_.structure())) {
    paths.push_back(key.path);
  }
  EXPECT_THAT(paths, ElementsAre("name", "tide", "seed", "pier", "pier.name", "pier.length",
                                 "moles", "moles[].name", "moles[].length", "work", "work.kind",
                                 "work.paid", "work.load", "work.rope_bytes", "work.stops", "soup",
                                 "soup.name", "soup.salt", "soup.minutes", "depth"));
}

TEST_F(SchemaTest, ReferencePageHasASectionForEachStruct) {
  const std::string page = reference_page(schema_.structure(), "Harbor");
  EXPECT_THAT(page, HasSubstr("# Harbor\n\n## Top level\n"));
  EXPECT_THAT(reference_page(schema_.structure(), "Harbor", "Ships."),
              HasSubstr("# Harbor\n\nShips.\n\n## Top level\n"));
  EXPECT_THAT(page, HasSubstr("\n## `work`\n"));
  EXPECT_THAT(page,
              HasSubstr("| `length` | an integer from 1 to 500, in m | `10` | How long it is. |"));
  EXPECT_THAT(page, HasSubstr("Where it stops. (work.kind: ferry)"));
}

TEST(EnumNameTest, SpellsAsFilesDo) {
  EXPECT_EQ(enum_name(Tide::kFlood), "flood");
}

}  // namespace
}  // namespace tidemill::harbor
