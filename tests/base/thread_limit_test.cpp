// SPDX-License-Identifier: Apache-2.0
// The limit of threads that a message names is the smallest one.
#include "base/thread_limit.hpp"

#include <filesystem>
#include <fstream>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

class ThreadLimitTest : public ::testing::Test {
protected:
  void SetUp() override {
    ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &before_), 0);
    write("groups", "0::/job/inner\n");
  }
  void TearDown() override { ::setrlimit(RLIMIT_NPROC, &before_); }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void limit_user(rlim_t most) const {
    rlimit limit = before_;
    limit.rlim_cur = most;
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &limit), 0);
  }
  [[nodiscard]] std::string text() const {
    return thread_limit_text({folder_.path() / "groups", folder_.path()});
  }
  [[nodiscard]] std::string in_group(const std::string& name) const {
    return " in " + (folder_.path() / name).string();
  }

  test::TemporaryDirectory folder_;
  rlimit before_{};
};

TEST_F(ThreadLimitTest, TheSmallestLimitIsNamed) {
  limit_user(1000);
  EXPECT_EQ(text(), "ulimit -u 1000");
  write("job/pids.max", "64\n");
  write("job/inner/pids.max", "max\n");
  EXPECT_EQ(text(), "pids.max 64" + in_group("job"));
  write("job/inner/pids.max", "32\n");
  EXPECT_EQ(text(), "pids.max 32" + in_group("job/inner"));
  limit_user(20);
  EXPECT_EQ(text(), "ulimit -u 20");
}

TEST_F(ThreadLimitTest, ControlGroupsOfVersion1) {
  write("groups", "8:pids:/job\n");
  limit_user(1000);
  write("pids/job/pids.max", "16\n");
  EXPECT_EQ(text(), "pids.max 16" + in_group("pids/job"));
}

}  // namespace
}  // namespace tidemill
