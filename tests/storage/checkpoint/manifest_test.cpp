// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/manifest.hpp"

#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"

namespace tidemill::storage {
namespace {

const std::string kDigest(32, 'a');

Manifest example() {
  return {.run_id = "run-1",
          .sequence = 12,
          .step = 240,
          .previous = kDigest,
          .objects = {{"weights", ObjectKind::kTensors, 1000, kDigest},
                      {"rows", ObjectKind::kBlob, 0, kDigest}}};
}

// Parses `text` under the name that belongs to its content.
Result<Manifest> parse(const std::string& text, std::uint64_t sequence = 12) {
  const std::string digest = digest_bytes(std::as_bytes(std::span(text)));
  return parse_manifest(text, {sequence, digest}, "m.json");
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = render_manifest(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest read = parse(render_manifest(example())).value();
  EXPECT_EQ(render_manifest(read), render_manifest(example()));
  EXPECT_EQ(read.objects[0].file_name(), kDigest + ".safetensors");
  EXPECT_EQ(read.objects[1].file_name(), kDigest + ".blob");
  EXPECT_EQ(read.step, 240U);
  EXPECT_EQ(read.run_id, "run-1");
}

TEST(Manifest, ANewerFormatIsRefusedWhateverItContains) {
  const Status refused = parse(R"({"format": 2, "novelty": true})").status();
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "m.json: made by a newer version of tidemill (format 2; this one reads up to 1)");
}

TEST(Manifest, RefusesInvalidManifests) {
  const std::vector<std::string> texts = {
      "",
      "[]",
      "{}",
      "{",
      changed("\"format\": 1", "\"format\": 0"),
      changed("\"format\": 1", "\"format\": \"1\""),
      changed("\"sequence\": 12", "\"sequence\": 13"),
      changed("\"sequence\": 12", "\"sequence\": -12"),
      changed("\"step\": 240", "\"step\": 1e3"),
      changed("\"previous\": \"" + kDigest, "\"previous\": \"../x"),
      changed("\"weights\"", "\"../weights\""),
      changed("\"weights\"", "\"rows\""),
      changed("\"weights\"", "\"\""),
      changed("\"tensors\"", "\"tensor\""),
      changed("\"size_bytes\": 1000", "\"size_bytes\": -1"),
      changed("\"size_bytes\": 1000", "\"size_bytes\": 1e400"),
      changed("\"digest\": \"a", "\"digest\": \"A"),
      changed("\"digest\": \"a", "\"digest\": \"/"),
      changed("\"digest\": \"a", "\"digest\": \""),
      changed("\"objects\"", "\"object\""),
      changed("\"step\": 240", "\"step\": 240, \"step\": 241"),
  };
  for (const std::string& text : texts) {
    const Status refused = parse(text).status();
    EXPECT_EQ(refused.code(), Errc::kCorruptData) << text;
    EXPECT_EQ(refused.message().rfind("m.json: ", 0), 0U) << refused.message();
  }
}

TEST(ManifestName, ParsesOnlyNamesThatItRenders) {
  const std::string name = "commit-000000000012-" + kDigest + ".json";
  EXPECT_EQ(manifest_file_name({12, kDigest}), name);
  EXPECT_EQ(parse_manifest_name(name)->sequence, 12U);
  EXPECT_EQ(parse_manifest_name(name)->digest, kDigest);
  const std::string large = manifest_file_name({12'345'678'901'234U, kDigest});
  EXPECT_EQ(parse_manifest_name(large)->sequence, 12'345'678'901'234U);
  for (const std::string& wrong :
       {std::string("commit-.json"), std::string("commit-12-") + kDigest + ".json",
        "commit-0000000000012-" + kDigest + ".json", "commit-00000000001x-" + kDigest + ".json",
        "commit-000000000012-" + kDigest + "a.json", "commit-000000000012-" + kDigest + ".jsom",
        "commit-99999999999999999999-" + kDigest + ".json",
        "Commit-000000000012-" + kDigest + ".json", std::string("store.json"), std::string()}) {
    EXPECT_FALSE(parse_manifest_name(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace tidemill::storage
