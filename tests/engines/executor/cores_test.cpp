// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/cores.hpp"

#include <fstream>
#include <sched.h>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/one_processor.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

// A tree of control groups, and the file that names those of the process.
class ControlGroups : public ::testing::Test {
protected:
  void own(const std::string& lines) { write("cgroup", lines); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] ControlGroupFiles files() const {
    return {directory_.path() / "cgroup", directory_.path() / "fs"};
  }
  [[nodiscard]] int quota() const { return group_quota(files()).cores; }

  test::TemporaryDirectory directory_;
};

TEST_F(ControlGroups, NoFilesAreNoLimit) {
  EXPECT_EQ(quota(), 0);
  own("0::/a\n");
  EXPECT_EQ(quota(), 0);
  write("fs/a/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
}

TEST_F(ControlGroups, ReadsTheOwnGroupOfVersion2) {
  own("0::/a/b\n");
  write("fs/a/b/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
  EXPECT_TRUE(group_quota(files()).source.ends_with("fs/a/b/cpu.max"));
}

TEST_F(ControlGroups, TheLowestQuotaOfAllAncestorsCounts) {
  own("0::/a/b/c\n");
  write("fs/a/b/c/cpu.max", "max 100000\n");
  write("fs/a/b/cpu.max", "800000 100000\n");
  write("fs/a/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
  EXPECT_TRUE(group_quota(files()).source.ends_with("fs/a/cpu.max"));
  write("fs/cpu.max", "100000 100000\n");  // the root of a container's own tree
  EXPECT_EQ(quota(), 1);
}

TEST_F(ControlGroups, OtherGroupsDoNotCount) {
  own("0::/a/b\n");
  write("fs/a/c/cpu.max", "100000 100000\n");
  write("fs/a/b/inner/cpu.max", "100000 100000\n");
  EXPECT_EQ(quota(), 0);
}

TEST_F(ControlGroups, FractionsOfACoreAreRoundedUp) {
  own("0::/a\n");
  write("fs/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 2);
  write("fs/a/cpu.max", "10000 100000\n");
  EXPECT_EQ(quota(), 1);
  write("fs/a/cpu.max", "100000 50000\n");
  EXPECT_EQ(quota(), 2);
}

TEST_F(ControlGroups, ReadsVersion1) {
  own("12:memory:/a\n5:cpu,cpuacct:/a/b\n1:name=systemd:/a\n");
  write("fs/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  write("fs/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0);
  write("fs/cpu,cpuacct/a/cpu.cfs_quota_us", "400000\n");
  write("fs/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 4);
}

TEST_F(ControlGroups, ReadsVersion1MountedUnderTheNameOfTheController) {
  own("5:cpuacct,cpu:/docker/1234\n0::/docker/1234\n");
  // In a container, its group is the root of the mount.
  write("fs/cpu/cpu.cfs_quota_us", "200000\n");
  write("fs/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2);
}

TEST_F(ControlGroups, TheCpusetControllerHasNoQuota) {
  own("5:cpuset,cpuacct:/a\n");
  write("fs/cpu/a/cpu.cfs_quota_us", "200000\n");
  write("fs/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0);
}

TEST_F(ControlGroups, BrokenFilesAreNoLimit) {
  for (const char* text : {"", "200000\n", "0 100000\n", "200000 0\n", "-5 100000\n", "2e 100000\n",
                           "200000 100000 1\n", "nan inf\n"}) {
    own("0::/a\n");
    write("fs/a/cpu.max", text);
    EXPECT_EQ(quota(), 0) << text;
  }
  for (const char* lines : {"", "0", "0:", "junk\n"}) {
    own(lines);
    write("fs/cpu.max", "100000 100000\n");
    EXPECT_EQ(quota(), 0) << lines;
  }
}

// What a process sees if its group is outside the tree that its namespace shows.
TEST_F(ControlGroups, AGroupOutsideTheTreeIsNotRead) {
  own("0::/../a\n");
  write("a/cpu.max", "100000 100000\n");
  EXPECT_EQ(quota(), 0);
  write("fs/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
}

TEST_F(ControlGroups, UsableCoresAreTheSmallerOfMaskAndQuota) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int cores = CPU_COUNT(&before);
  EXPECT_EQ(usable_cores(files()).cores, cores);
  own("0::/a\n");
  write("fs/a/cpu.max", "100000000 100000\n");
  EXPECT_EQ(usable_cores(files()).cores, cores);
  write("fs/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(usable_cores(files()).cores, 1);

  const test::OnOneProcessor one;
  write("fs/a/cpu.max", "800000 100000\n");
  EXPECT_EQ(usable_cores(files()).cores, 1);
  EXPECT_EQ(usable_cores(files()).source, "CPU affinity mask");
}

TEST(TooManyThreads, GiveOneLineThatSaysWhy) {
  EXPECT_EQ(too_many_threads(0, {2, "x"}), "");
  EXPECT_EQ(too_many_threads(2, {2, "x"}), "");
  EXPECT_EQ(too_many_threads(3, {2, "/sys/fs/cgroup/a/cpu.max"}),
            "3 threads exceed the 2 cores that this process may use (/sys/fs/cgroup/a/cpu.max); "
            "fewer threads would be faster");
  EXPECT_EQ(too_many_threads(2, {1, "CPU affinity mask"}).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace tidemill::engines
