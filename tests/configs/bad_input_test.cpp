// SPDX-License-Identifier: Apache-2.0
// Tests that every file in bad/ is refused with the line that it states: after `# expect:` in its
// first line, or in the file NAME.expect. FILE stands for the path. `# arguments:` in the second
// line lists overrides. The other tests generate files that are too large for the repository.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "configs/load.hpp"
#include "configs/yaml_tree.hpp"

namespace tidemill::configs {
namespace {

constexpr std::size_t kNumCases = 192;

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// Returns the text after `label` on line `number` (from 0) of `text`, or "".
std::string after(const std::string& text, int number, std::string_view label) {
  std::istringstream lines(text);
  std::string line;
  for (int i = 0; i <= number; ++i) {
    if (!std::getline(lines, line)) {
      return {};
    }
  }
  return line.starts_with(label) ? line.substr(label.size()) : "";
}

std::string with_path(std::string message, const std::string& path) {
  const std::string_view placeholder = "FILE";
  const std::size_t at = message.find(placeholder);
  return at == 0 ? path + message.substr(placeholder.size()) : message;
}

// Overrides are numbered from 3, since the command and the file are the first two arguments.
std::vector<Override> overrides_of(const std::string& words) {
  std::vector<Override> overrides;
  std::istringstream stream(words);
  std::string word;
  while (stream >> word) {
    overrides.push_back({word, "argument " + std::to_string(overrides.size() + 3)});
  }
  return overrides;
}

std::string outcome_of(const std::string& path, std::span<const Override> overrides = {}) {
  const auto schema = Schema<RunConfig>::described();
  const auto result = load_run_config(schema, path, overrides);
  return result.ok() ? "was accepted" : result.status().message();
}

TEST(BadInputTest, EveryFileIsRefusedWithItsMessage) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TIDEMILL_TEST_DIR "/configs/bad")) {
    if (entry.path().extension() == ".yaml") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    const std::string text = read(file);
    std::filesystem::path sidecar = file;
    sidecar.replace_extension(".expect");
    const std::string expected = std::filesystem::exists(sidecar) ? after(read(sidecar), 0, "")
                                                                  : after(text, 0, "# expect: ");
    ASSERT_NE(expected, "") << file << " states no expected line";
    const std::vector<Override> overrides = overrides_of(after(text, 1, "# arguments: "));
    EXPECT_EQ(outcome_of(file.string(), overrides), with_path(expected, file.string()));
  }
  std::printf("checked %zu bad files\n", files.size());
  EXPECT_EQ(files.size(), kNumCases);
}

class GeneratedFile {
public:
  explicit GeneratedFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("tidemill-bad-" + std::to_string(::getpid()) + ".yaml")) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  GeneratedFile(const GeneratedFile&) = delete;
  GeneratedFile& operator=(const GeneratedFile&) = delete;
  ~GeneratedFile() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

private:
  std::filesystem::path path_;
};

TEST(BadInputTest, SizeBomb) {
  const GeneratedFile file("workflow: rl\n" + std::string(kMaxYamlBytes, '#'));
  EXPECT_EQ(outcome_of(file.path()), file.path() + ": is larger than 1 MiB");
}

TEST(BadInputTest, DepthBomb) {
  const GeneratedFile file("a: " + std::string(400, '[') + std::string(400, ']'));
  EXPECT_EQ(outcome_of(file.path()), file.path() + ":1: is nested deeper than 32 levels");
}

TEST(BadInputTest, BlockDepthBomb) {
  std::string text;
  for (std::size_t depth = 0; depth < 1000; ++depth) {
    text += std::string(depth, ' ') + "a:\n";
  }
  const GeneratedFile file(text);
  EXPECT_EQ(outcome_of(file.path()), file.path() + ":33: is nested deeper than 32 levels");
}

TEST(BadInputTest, KeyBomb) {
  std::string text;
  for (int i = 0; i < 60'000; ++i) {
    text += 'k';
    text += std::to_string(i);
    text += ": 1\n";
  }
  const GeneratedFile file(text);
  EXPECT_EQ(outcome_of(file.path()), file.path() + ":50000: contains more than 100000 values");
}

TEST(BadInputTest, ListBomb) {
  std::string files;
  for (int i = 0; i < 10'001; ++i) {
    files += "f,";
  }
  const GeneratedFile file("workflow: rl\nmodel: {path: m}\ndata: {train: [" + files + "]}\n");
  EXPECT_EQ(outcome_of(file.path()),
            file.path() + ":3: data.train: needs at most 10000 elements, found 10001");
}

TEST(BadInputTest, LongKeyIsCutInTheMessage) {
  const GeneratedFile file("workflow: rl\n? \"" + std::string(5000, 'k') + "\"\n: 1\n");
  EXPECT_EQ(outcome_of(file.path()),
            file.path() + ":2: " + std::string(60, 'k') + "...: unknown key");
}

TEST(BadInputTest, PathsThatAreNotRegularFiles) {
  EXPECT_EQ(outcome_of("/nowhere/x.yaml"), "/nowhere/x.yaml: no such file");
  EXPECT_EQ(outcome_of("/"),
            "/: is a folder, not a YAML file; a file names its model's folder as model.path");
  EXPECT_EQ(outcome_of("/dev/zero"), "/dev/zero: is not a file");
  EXPECT_EQ(outcome_of(""), ": no such file");
}

}  // namespace
}  // namespace tidemill::configs
