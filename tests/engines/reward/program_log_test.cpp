// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/program_log.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;

TEST(ProgramLog, TheFileStaysBoundedAndTheLastLineIsTheNewest) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "stderr.txt";
  ProgramLog log = ProgramLog::open(path).value();
  std::string block(kMiB, 'x');
  block.back() = '\n';
  for (int i = 0; i < 64; ++i) {
    log.append(block);
  }
  EXPECT_EQ(std::filesystem::file_size(path), 64 * kMiB);
  for (int i = 0; i < 2; ++i) {
    log.append(block);
  }
  log.append("the newest line\n");
  EXPECT_EQ(std::filesystem::file_size(path), 64 * kMiB);
  EXPECT_EQ(log.last_line(), "the newest line");
}

TEST(ProgramLog, AddsToTheFileThatExists) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "stderr.txt";
  for (const std::string line : {"first\n", "second\n"}) {
    ProgramLog log = ProgramLog::open(path).value();
    EXPECT_EQ(log.last_line(), "");
    log.append(line);
  }
  EXPECT_EQ(std::filesystem::file_size(path), std::string("first\nsecond\n").size());
}

TEST(ProgramLog, WithoutAPathOnlyTheEndIsKept) {
  ProgramLog log = ProgramLog::open("").value();
  log.append("one\ntwo\n\n");
  EXPECT_EQ(log.last_line(), "two");
  log.clear_tail();
  EXPECT_EQ(log.last_line(), "");
}

}  // namespace
}  // namespace tidemill::engines
