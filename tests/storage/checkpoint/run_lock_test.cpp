// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/run_lock.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/file.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill::storage {
namespace {

TEST(RunLock, HasOneHolderAtATime) {
  const test::TemporaryDirectory run;
  {
    const auto lock = RunLock::acquire(run.path());
    ASSERT_TRUE(lock.ok()) << lock.status().to_string();
    const Status second = RunLock::acquire(run.path()).status();
    EXPECT_EQ(second.code(), Errc::kUnavailable);
    EXPECT_EQ(second.message(),
              run.path().string() + ": in use by process " + std::to_string(::getpid()));
  }
  EXPECT_TRUE(RunLock::acquire(run.path()).ok());
}

TEST(RunLock, NamesItsHolderAndEndsWithIt) {
  const test::TemporaryDirectory run;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t holder = ::fork();
  ASSERT_GE(holder, 0);
  if (holder == 0) {
    const auto lock = RunLock::acquire(run.path());
    [[maybe_unused]] const ssize_t told = ::write(ready[1], lock.ok() ? "y" : "n", 1);
    ::pause();
    ::_exit(0);
  }
  char reply = 0;
  ASSERT_EQ(::read(ready[0], &reply, 1), 1);
  EXPECT_EQ(reply, 'y');
  EXPECT_EQ(RunLock::acquire(run.path()).status().message(),
            run.path().string() + ": in use by process " + std::to_string(holder));
  ::kill(holder, SIGKILL);
  ASSERT_EQ(::waitpid(holder, nullptr, 0), holder);
  EXPECT_TRUE(RunLock::acquire(run.path()).ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RunLock, IsVisibleWithoutBeingTaken) {
  const test::TemporaryDirectory run;
  EXPECT_FALSE(is_run_locked(run.path()).value());
  EXPECT_FALSE(std::filesystem::exists(run.path() / "lock"));  // checking creates no file
  {
    const auto lock = RunLock::acquire(run.path());
    EXPECT_TRUE(is_run_locked(run.path()).value());
  }
  EXPECT_FALSE(is_run_locked(run.path()).value());
}

// A process that checks the lock holds it for a moment.
TEST(RunLock, WaitsForAProcessThatChecksIt) {
  const test::TemporaryDirectory run;
  ASSERT_TRUE(RunLock::acquire(run.path()).ok());
  const int looking = ::open((run.path() / "lock").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(looking, LOCK_SH | LOCK_NB), 0);
  // The sleep makes it likely that the lock is requested before it is free. Both cases must work.
  std::thread leaves([looking] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::close(looking);
  });
  EXPECT_TRUE(RunLock::acquire(run.path()).ok());
  leaves.join();
}

TEST(RunLock, NeedsADirectoryAndFollowsNoLink) {
  const test::TemporaryDirectory run;
  EXPECT_EQ(RunLock::acquire(run.path() / "none").status().code(), Errc::kNotFound);
  std::filesystem::create_symlink(run.path() / "elsewhere", run.path() / "lock");
  EXPECT_EQ(RunLock::acquire(run.path()).status().code(), Errc::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(run.path() / "elsewhere"));
}

}  // namespace
}  // namespace tidemill::storage
