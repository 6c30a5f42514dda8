// SPDX-License-Identifier: Apache-2.0
// Runs every target on its seeds, its corpus, and the inputs that once violated an invariant.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

// A target and the number of its inputs, so that a missing input is noticed.
struct Row {
  const char* name;
  Target run;
  std::size_t num_seeds;
  std::size_t num_corpus;
  std::size_t num_cases;
};

constexpr Row kRows[] = {
    {"actor_message", actor_message, 0, 24, 0},
    {"adapter_config", adapter_config, 10, 0, 2},
    {"api_request", api_request, 0, 11, 0},
    {"chat_template", chat_template, 5, 48, 3},
    {"dataset_rows", dataset_rows, 3, 11, 3},
    {"envelope", envelope, 0, 5, 0},
    {"gguf", gguf, 1, 20, 0},
    {"json_schema", json_schema, 0, 3, 0},
    {"model_config", model_config, 18, 0, 0},
    {"nf4_tensors", nf4_tensors, 0, 12, 0},
    {"own_files", own_files, 0, 8, 0},
    {"run_file", run_file, 3, 5, 3},
    {"safetensors", safetensors, 1, 15, 0},
    {"segment_handshake", segment_handshake, 0, 25, 2},
    {"shard_index", shard_index, 1, 7, 0},
    {"shm_handshake", shm_handshake, 0, 24, 0},
    {"tinker_request", tinker_request, 0, 26, 0},
    {"tokenizer", tokenizer, 1, 17, 13},
    {"tokenizer_config", tokenizer_config, 3, 6, 3},
    {"uploaded_form", uploaded_form, 0, 4, 0},
    {"zmq_handshake", zmq_handshake, 0, 18, 0},
};

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> files_of(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Reads the list that the build writes from tests/fuzz/CMakeLists.txt, separated by commas.
std::vector<std::filesystem::path> seeds_of(const std::string& name) {
  std::istringstream list(read(std::string(TIDEMILL_FUZZ_SEEDS) + "/" + name + ".seeds"));
  std::vector<std::filesystem::path> files;
  std::string file;
  while (std::getline(list, file, ',')) {
    files.emplace_back(file);
  }
  return files;
}

void replay(const Row& row, const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& file : files) {
    std::cout << file.string()
              << std::endl;  // the last line shows the input at which a sanitizer stopped
    const std::string input = read(file);
    EXPECT_FALSE(input.empty());
    EXPECT_NO_THROW(row.run(input)) << file;
  }
}

class FuzzReplayTest : public ::testing::TestWithParam<Row> {};

TEST_P(FuzzReplayTest, InvariantsHold) {
  const Row& row = GetParam();
  const std::string folder = TIDEMILL_TEST_DIR "/fuzz/";
  const auto seeds = seeds_of(row.name);
  const auto corpus = files_of(folder + "corpus/" + row.name);
  const auto cases = files_of(folder + "cases/" + row.name);
  EXPECT_EQ(seeds.size(), row.num_seeds);
  EXPECT_EQ(corpus.size(), row.num_corpus);
  EXPECT_EQ(cases.size(), row.num_cases);
  replay(row, seeds);
  replay(row, corpus);
  replay(row, cases);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplayTest, ::testing::ValuesIn(kRows),
                         [](const auto& target) { return std::string(target.param.name); });

TEST(FuzzReplayTest, EveryFolderHasATarget) {
  for (const char* kind : {"corpus", "cases"}) {
    for (const auto& folder : files_of(std::string(TIDEMILL_TEST_DIR "/fuzz/") + kind)) {
      const auto is_named = [&folder](const Row& row) { return folder.filename() == row.name; };
      EXPECT_TRUE(std::any_of(std::begin(kRows), std::end(kRows), is_named)) << folder;
    }
  }
}

}  // namespace
}  // namespace tidemill::fuzz
