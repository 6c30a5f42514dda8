// SPDX-License-Identifier: Apache-2.0
// Tests which limits of a process count against a memory plan.
#include "workflows/process_limits.hpp"

#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread_limit.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::workflows {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;

// A tree of control groups, and the file that names those of the process.
class MemoryGroups : public ::testing::Test {
protected:
  void own(const std::string& lines) { write("cgroup", lines); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] MemoryLimit limit() const {
    return group_memory_limit({directory_.path() / "cgroup", directory_.path() / "fs"});
  }

  const std::int64_t no_limit_ = MemoryLimit{}.bytes;
  test::TemporaryDirectory directory_;
};

TEST_F(MemoryGroups, NoFilesAreNoLimit) {
  EXPECT_EQ(limit().bytes, no_limit_);
  own("0::/a\n");
  EXPECT_EQ(limit().bytes, no_limit_);
  write("fs/a/memory.max", "max\n");
  EXPECT_EQ(limit().bytes, no_limit_);
}

TEST_F(MemoryGroups, TheLowestLimitOfVersion2CountsWithItsAncestors) {
  own("0::/a/b\n");
  write("fs/a/b/memory.max", "104857600\n");
  EXPECT_EQ(limit().bytes, 100 * kMebibyte);
  write("fs/a/memory.max", "52428800\n");
  EXPECT_EQ(limit().bytes, 50 * kMebibyte);
  EXPECT_THAT(limit().name, ::testing::EndsWith("fs/a/memory.max"));
  write("fs/memory.max", "31457280\n");  // the root of a container's own tree
  EXPECT_EQ(limit().bytes, 30 * kMebibyte);
}

TEST_F(MemoryGroups, ReadsVersion1) {
  own("12:cpu,cpuacct:/x\n11:memory:/docker/7\n1:name=systemd:/docker/7\n");
  write("fs/memory/docker/7/memory.limit_in_bytes", "31457280\n");
  write("fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("fs/memory/x/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(limit().bytes, 30 * kMebibyte);
  EXPECT_THAT(limit().name, ::testing::EndsWith("fs/memory/docker/7/memory.limit_in_bytes"));
}

TEST_F(MemoryGroups, ReadsVersion1InAContainerThatShowsItsOwnGroupAsTheRoot) {
  own("11:memory:/docker/7\n");
  write("fs/memory/memory.limit_in_bytes", "31457280\n");
  EXPECT_EQ(limit().bytes, 30 * kMebibyte);
}

TEST_F(MemoryGroups, ReadsVersion1MountedWithAnotherController) {
  own("4:cpuset,memory:/a\n");
  write("fs/cpuset,memory/a/memory.limit_in_bytes", "31457280\n");
  EXPECT_EQ(limit().bytes, 30 * kMebibyte);
}

TEST_F(MemoryGroups, ReadsBothVersions) {
  own("4:memory:/a\n0::/b\n");
  write("fs/b/memory.max", "52428800\n");
  write("fs/memory/a/memory.limit_in_bytes", "31457280\n");
  EXPECT_EQ(limit().bytes, 30 * kMebibyte);
  write("fs/b/memory.max", "10485760\n");
  EXPECT_EQ(limit().bytes, 10 * kMebibyte);
}

TEST(PlanLimit, LeavesOutWhatIsReservedButNotPartOfThePlan) {
  EXPECT_EQ(plan_limit({}), std::nullopt);
  // 300 MiB reserved, of which the plan counts 20; 80 for later stacks: 500 - 280 - 80 are left.
  EXPECT_EQ(plan_limit({500 * kMebibyte, 300 * kMebibyte, 20 * kMebibyte, 80 * kMebibyte}),
            140 * kMebibyte);
  EXPECT_EQ(plan_limit({100 * kMebibyte, 300 * kMebibyte, 20 * kMebibyte, 80 * kMebibyte}), 0);
}

// Returns what `check` returns in a child process with the limit `bytes` of `resource`.
template <class Check>
int in_limited_process(__rlimit_resource resource, rlim_t bytes, Check check) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{bytes, bytes};
    ::_exit(::setrlimit(resource, &limit) == 0 ? check() : 99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessMemoryLimit, NamesTheLimitOfTheAddressSpace) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer reserves more address space than any limit allows";
#endif
  constexpr rlim_t kLimit = std::int64_t{4} << 30U;
  EXPECT_EQ(in_limited_process(RLIMIT_AS, kLimit,
                               [] {
                                 const MemoryLimit limit = process_memory_limit(4);
                                 const bool named = limit.name == "ulimit -v";
                                 return named && limit.bytes < (std::int64_t{4} << 30U) ? 7 : 1;
                               }),
            7);
  EXPECT_EQ(in_limited_process(RLIMIT_DATA, kLimit,
                               [] { return process_memory_limit(4).name == "ulimit -d" ? 7 : 1; }),
            7);
}

TEST(LimitsText, NamesTheLimitsOfTheProcess) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer reserves more address space than any limit allows";
#endif
  const std::string before = limits_text(LimitKinds::kMemory);
  ASSERT_EQ(before, "") << "the tests need a process without limits";
  const std::string threads = thread_limit_text();
  const auto check = [&threads] {
    const rlimit data{std::uint64_t{3} << 30U, std::uint64_t{3} << 30U};
    if (::setrlimit(RLIMIT_DATA, &data) != 0) {
      return 98;
    }
    const std::string memory = " (ulimit -v 4096.5 MiB, ulimit -d 3072.0 MiB";
    const std::string all = memory + (threads.empty() ? "" : ", " + threads) + ')';
    const Status refused = with_limits({Errc::kResourceExhausted, "no memory"});
    const Status other = with_limits(invalid_argument("no key"));
    return limits_text(LimitKinds::kMemory) != memory + ')'    ? 1
           : limits_text(LimitKinds::kMemoryAndThreads) != all ? 2
           : refused.message() != "no memory" + all            ? 3
           : refused.code() != Errc::kResourceExhausted        ? 4
           : other.message() != "no key"                       ? 5
                                                               : 7;
  };
  EXPECT_EQ(in_limited_process(RLIMIT_AS, 4096 * kMebibyte + kMebibyte / 2, check), 7);
}

TEST(CheckThreads, FailsIfAThreadCannotBeStarted) {
  EXPECT_TRUE(check_threads(3).ok());
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer reserves more address space than any limit allows";
#endif
  // The stacks of a hundred threads do not fit into what is left of the address space.
  const auto check = [] {
    const Status status = check_threads(100);
    const bool named = status.message().find("ulimit -v") != std::string::npos;
    return status.code() == Errc::kResourceExhausted && named ? 7 : 1;
  };
  EXPECT_EQ(in_limited_process(RLIMIT_AS, 500 * kMebibyte, check), 7);
}

TEST(CheckFiles, NamesWhatIsNeededAndWhatIsLeft) {
  EXPECT_TRUE(check_files(1, "a process").ok());
  const auto check = [] {
    const Status status = check_files(60, "20 processes");
    return !check_files(30, "10 processes").ok()                                    ? 1
           : status.code() != Errc::kResourceExhausted                              ? 2
           : status.message().find("20 processes need 60 open files, and ") != 0    ? 3
           : status.message().find(" are left (ulimit -n 60)") == std::string::npos ? 4
                                                                                    : 7;
  };
  EXPECT_EQ(in_limited_process(RLIMIT_NOFILE, 60, check), 7);
}

}  // namespace
}  // namespace tidemill::workflows
