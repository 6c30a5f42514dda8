// SPDX-License-Identifier: Apache-2.0
// Changes inside a held directory happen there, or not at all, when its path is used otherwise.
#include "base/files/held_directory.hpp"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

class HeldDirectoryTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::filesystem::create_directory(run());
    auto held = HeldDirectory::open(run());
    ASSERT_TRUE(held.ok()) << held.status().message();
    held_ = std::move(held).value();
  }
  [[nodiscard]] std::filesystem::path at(const std::string& name) const {
    return folder_.path() / name;
  }
  [[nodiscard]] std::filesystem::path run() const { return at("run"); }
  // Moves the directory, and puts another one at its path.
  void replace() const {
    std::filesystem::rename(run(), at("moved"));
    std::filesystem::create_directory(run());
  }
  [[nodiscard]] bool is_file(const std::string& name) const {
    return std::filesystem::is_regular_file(at(name));
  }

  test::TemporaryDirectory folder_;
  std::shared_ptr<const HeldDirectory> held_;
};

TEST_F(HeldDirectoryTest, FilesAreChangedAtTheirPaths) {
  HeldDirectoryFiles files(held_, OnMove::kRefuse);
  ASSERT_TRUE(make_directory(files, run() / "inner").ok());
  ASSERT_TRUE(write_file(files, run() / "inner/a", std::string_view("1")).ok());
  EXPECT_TRUE(is_file("run/inner/a"));
  EXPECT_TRUE(remove_tree(files, run(), "inner").ok());
  EXPECT_FALSE(std::filesystem::exists(run() / "inner"));
  ASSERT_TRUE(write_file(files, at("outside"), std::string_view("1")).ok());
  EXPECT_TRUE(is_file("outside"));
}

TEST_F(HeldDirectoryTest, KnowsWhereTheDirectoryIs) {
  EXPECT_TRUE(held_->in_place());
  replace();
  EXPECT_FALSE(held_->in_place());
  EXPECT_EQ(held_->current_path(), std::filesystem::canonical(at("moved")));
  std::filesystem::remove(at("moved"));
  EXPECT_FALSE(held_->current_path().has_value());
}

TEST_F(HeldDirectoryTest, ChangesAreRefusedOnceThePathNamesAnotherDirectory) {
  HeldDirectoryFiles files(held_, OnMove::kRefuse);
  DurableFile begun(files, run() / "begun");
  ASSERT_TRUE(begun.write(std::as_bytes(std::span("1"))).ok());
  replace();
  EXPECT_EQ(begun.commit().code(), Errc::kInvalidArgument);
  EXPECT_EQ(write_file(files, run() / "a", std::string_view("1")).code(), Errc::kInvalidArgument);
  EXPECT_EQ(make_directory(files, run() / "inner").code(), Errc::kInvalidArgument);
  std::ofstream(run() / "theirs") << "1";
  EXPECT_FALSE(remove_file(files, run() / "theirs").ok());
  EXPECT_EQ(list_directory(run()).value(), std::vector<std::string>{"theirs"});
}

TEST_F(HeldDirectoryTest, ChangesFollowTheDirectoryOnRequest) {
  HeldDirectoryFiles files(held_, OnMove::kFollow);
  replace();
  ASSERT_TRUE(write_file(files, run() / "a", std::string_view("1")).ok());
  EXPECT_TRUE(is_file("moved/a"));
  EXPECT_TRUE(std::filesystem::is_empty(run()));
  std::filesystem::remove_all(at("moved"));
  EXPECT_EQ(write_file(files, run() / "a", std::string_view("1")).code(), Errc::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(run()));
}

TEST_F(HeldDirectoryTest, OnlyRegularFilesAreAppendedTo) {
  const auto opened = open_for_append(*held_, "log");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(::write(opened.value(), "1", 1), 1);
  ::close(opened.value());
  EXPECT_EQ(std::filesystem::file_size(run() / "log"), 1U);
  ASSERT_EQ(::mkfifo((run() / "pipe").c_str(), 0600), 0);
  const std::string refused = (run() / "pipe").string() + ": not a regular file";
  EXPECT_EQ(open_for_append(*held_, "pipe").status().message(), refused);
  const int reader = ::open((run() / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(open_for_append(*held_, "pipe").status().message(), refused) << "with a reader too";
  ::close(reader);

  const auto again = open_for_append(*held_, "log");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(::write(again.value(), "2", 1), 1);
  ::close(again.value());
  std::ifstream log(run() / "log");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(log), {}), "12");
  std::filesystem::create_directory(run() / "folder");
  EXPECT_EQ(open_for_append(*held_, "folder").status().message(),
            (run() / "folder").string() + ": cannot open: Is a directory");
}

}  // namespace
}  // namespace tidemill
