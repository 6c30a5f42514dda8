// SPDX-License-Identifier: Apache-2.0
// `arithmetic_data DIRECTORY`: writes the quickstart's data files.
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/file.hpp"
#include "examples/arithmetic/addition.hpp"

int main(int argc, char** argv) {
  using tidemill::examples::AdditionTask;
  if (argc != 2 || std::string_view(argv[1]).substr(0, 1) == "-") {
    std::cerr << "Usage: arithmetic_data DIRECTORY\n"
                 "Writes sft.jsonl, train.jsonl and eval.jsonl; see examples/arithmetic.\n";
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  const AdditionTask task = AdditionTask::of_seed(tidemill::examples::kTaskSeed);
  const std::pair<const char*, std::string> files[] = {
      {"sft.jsonl", supervised_rows(task.train)},
      {"train.jsonl", prompt_rows(task.train)},
      {"eval.jsonl", prompt_rows(task.eval)},
  };
  tidemill::PosixFileSystem file_system;
  for (const auto& [name, text] : files) {
    const tidemill::Status written = write_file(file_system, directory / name, text);
    if (!written.ok()) {
      std::cerr << "arithmetic_data: " << written.message() << "\n";
      return 1;
    }
  }
  return 0;
}
