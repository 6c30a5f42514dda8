// SPDX-License-Identifier: Apache-2.0
#include "base/files/file.hpp"

#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/faulty_file_system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

using test::FaultyFileSystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FileTest : public ::testing::Test {
protected:
  std::filesystem::path at(const std::string& name) { return directory_.path() / name; }
  std::string content(const std::string& name) {
    auto text = read_text_file(at(name), 1 << 20U);
    return text.ok() ? std::move(text).value() : text.status().to_string();
  }
  std::vector<std::string> names() { return list_directory(directory_.path()).value(); }

  PosixFileSystem files_;
  test::TemporaryDirectory directory_;
};

// Only what may go away without anybody's help is transient: the work is then tried again.
TEST(SystemErrors, HaveTheCodeThatSaysWhoCanHelp) {
  const std::vector<std::pair<Errc, std::vector<int>>> cases{
      {Errc::kNotFound, {ENOENT}},
      {Errc::kResourceExhausted, {ENOSPC, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM}},
      {Errc::kInvalidArgument,
       {EACCES, EPERM, EROFS, EISDIR, ENOTDIR, ENAMETOOLONG, ELOOP, EINVAL, EEXIST, ENOTEMPTY,
        ESTALE, EXDEV}},
      {Errc::kUnavailable, {EIO, EAGAIN, EINTR}}};
  for (const auto& [code, errors] : cases) {
    for (const int error : errors) {
      EXPECT_EQ(system_error(error, "open", "x").code(), code) << error;
    }
  }
}

TEST(FileNames, AcceptsPlainNames) {
  for (const char* name : {"a", "run-1", "A.b_c-9", "0"}) {
    EXPECT_TRUE(check_name(name).ok()) << name;
  }
  EXPECT_TRUE(check_name(std::string(128, 'x')).ok());
}

TEST(FileNames, RefusesNamesThatCouldLeaveADirectory) {
  const std::vector<std::string> bad{"",
                                     ".",
                                     "..",
                                     ".hidden",
                                     "a/b",
                                     "/a",
                                     "../a",
                                     "a\\b",
                                     "%2e%2e",
                                     "a b",
                                     "a\n",
                                     std::string("a\0b", 3),
                                     "caf\xC3\xA9",
                                     "\xEF\xBC\x8E\xEF\xBC\x8E",
                                     "~",
                                     "a:b",
                                     std::string(129, 'x')};
  for (const std::string& name : bad) {
    const Status status = check_name(name);
    EXPECT_EQ(status.code(), Errc::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

TEST_F(FileTest, ReadsWithinTheLimit) {
  std::ofstream(at("a")) << "hello";
  EXPECT_EQ(read_text_file(at("a"), 5).value(), "hello");
  const Status status = read_text_file(at("a"), 4).status();
  EXPECT_EQ(status.code(), Errc::kInvalidArgument);
  EXPECT_EQ(status.message(), at("a").string() + ": 5 bytes; at most 4 are read");
}

TEST_F(FileTest, ReadsAPrefix) {
  const std::string text(200'000, 'x');  // several blocks
  std::ofstream(at("a")) << text;
  const auto file = ReadableFile::open(at("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file.value().read_prefix(300'000).value(), text);
  EXPECT_EQ(file.value().read_prefix(200'000).value(), text);
  EXPECT_EQ(file.value().read_prefix(100'000).value(), text.substr(0, 100'000));
  EXPECT_EQ(ReadableFile::open("/proc/self/stat").value().size_bytes(), 0U);
  EXPECT_NE(ReadableFile::open("/proc/self/stat").value().read_prefix(10).value(), "");
}

TEST_F(FileTest, RefusesAnythingButRegularFiles) {
  EXPECT_EQ(ReadableFile::open(at("none")).status().code(), Errc::kNotFound);
  EXPECT_THAT(ReadableFile::open(directory_.path()).status().message(),
              HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_THAT(ReadableFile::open(at("pipe")).status().message(), HasSubstr("not a regular file"));
  EXPECT_THAT(ReadableFile::open("/dev/zero").status().message(), HasSubstr("not a regular file"));
}

TEST_F(FileTest, MapsTheFileItOpened) {
  std::ofstream(at("a")) << "hello";
  auto file = ReadableFile::open(at("a"));
  ASSERT_TRUE(file.ok());
  const Buffer bytes = file.value().map().value();
  EXPECT_EQ(bytes.size_bytes(), 5U);
  EXPECT_EQ(bytes.as<char>()[4], 'o');
  std::filesystem::resize_file(at("a"), 4);
  EXPECT_EQ(file.value().map().status().message(),
            at("a").string() + ": changed from 5 to 4 bytes while being read");
  std::vector<std::byte> all(5);
  EXPECT_EQ(file.value().read_at(0, all).message(),
            at("a").string() + ": ends at byte 4, 1 bytes early");
  std::ofstream(at("empty")).flush();
  EXPECT_EQ(ReadableFile::open(at("empty")).value().map().value().size_bytes(), 0U);
}

TEST_F(FileTest, CopiesFromTheMappedFile) {
  std::ofstream(at("a")) << "hello, world";
  const Buffer bytes = ReadableFile::open(at("a")).value().map().value();  // outlives the object
  const Buffer world = bytes.slice(7, 5, DType::kU8);
  EXPECT_EQ(world.backing(), Backing::kFile);
  const auto copied = [](const Buffer& from, std::size_t offset, std::size_t count) {
    std::string text(count, '?');
    const Status status = from.copy_to(offset, std::as_writable_bytes(std::span(text)));
    return status.ok() ? text : status.to_string();
  };
  EXPECT_EQ(copied(bytes, 0, 12), "hello, world");
  EXPECT_EQ(copied(world, 0, 5), "world");
  EXPECT_EQ(copied(world, 2, 3), "rld");
  EXPECT_EQ(copied(world, 5, 0), "");
  const Buffer memory = Buffer::copy_of(world.bytes());
  std::filesystem::resize_file(at("a"), 9);
  EXPECT_EQ(copied(world, 0, 2), "wo");
  std::vector<std::byte> out(4);
  EXPECT_EQ(world.copy_to(1, out).code(), Errc::kCorruptData);
  EXPECT_EQ(world.copy_to(1, out).message(), at("a").string() + ": ends at byte 9, 3 bytes early");
  EXPECT_EQ(memory.backing(), Backing::kNone);
  EXPECT_EQ(copied(memory, 1, 4), "orld");
}

TEST_F(FileTest, WritesAndReplacesWholeFiles) {
  ASSERT_TRUE(write_file(files_, at("a"), "one").ok());
  ASSERT_TRUE(write_file(files_, at("a"), "two").ok());
  EXPECT_EQ(content("a"), "two");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(FileTest, AnUncommittedFileLeavesNothing) {
  {
    DurableFile file(files_, at("a"));
    ASSERT_TRUE(file.write(std::as_bytes(std::span("half"))).ok());
    EXPECT_EQ(names().size(), 1U);
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(FileTest, TwoWritersOfOneNameDoNotCollide) {
  DurableFile first(files_, at("a"));
  DurableFile second(files_, at("a"));
  ASSERT_TRUE(first.write(std::as_bytes(std::span("11", 2))).ok());
  ASSERT_TRUE(second.write(std::as_bytes(std::span("2", 1))).ok());
  ASSERT_TRUE(second.commit().ok());
  ASSERT_TRUE(first.commit().ok());
  EXPECT_EQ(content("a"), "11");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(FileTest, SurvivesShortWritesAndInterruptions) {
  FaultyFileSystem one_byte_at_a_time({.at = 4, .error = EINTR});
  one_byte_at_a_time.max_write_bytes = 1;
  ASSERT_TRUE(write_file(one_byte_at_a_time, at("a"), "hello").ok());
  EXPECT_EQ(content("a"), "hello");
}

// Replaces an old file while every system call fails in turn, in every way.
TEST_F(FileTest, EveryFaultLeavesTheOldFileOrTheNewOne) {
  FaultyFileSystem counting({});
  ASSERT_TRUE(write_file(counting, at("a"), "new").ok());
  const int num_calls = counting.num_calls();
  ASSERT_EQ(num_calls, 6);  // create, write, sync, close, rename, sync the directory
  for (int call = 1; call <= num_calls; ++call) {
    for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
      ASSERT_TRUE(write_file(files_, at("a"), "old").ok());
      FaultyFileSystem faulty({.at = call, .error = error});
      const Status status = write_file(faulty, at("a"), "new");
      ASSERT_FALSE(status.ok()) << "call " << call << ": a failure was swallowed";
      EXPECT_THAT(status.message(),
                  HasSubstr(call == num_calls ? directory_.path().string() : at("a").string()));
      EXPECT_EQ(content("a"), call == num_calls ? "new" : "old") << call;
      EXPECT_THAT(names(), ElementsAre("a")) << "call " << call << " left a temporary file";
    }
  }
}

TEST_F(FileTest, EveryCrashLeavesTheOldFileOrTheNewOne) {
  for (int call = 1; call <= 6; ++call) {
    ASSERT_TRUE(write_file(files_, at("a"), "old").ok());
    FaultyFileSystem dying({.at = call, .error = EIO, .dead = true});
    EXPECT_FALSE(write_file(dying, at("a"), "new").ok());
    EXPECT_EQ(content("a"), call == 6 ? "new" : "old") << call;
    ASSERT_TRUE(remove_temporary_files(files_, directory_.path()).ok());
    EXPECT_THAT(names(), ElementsAre("a"));
  }
}

TEST_F(FileTest, AFailedSyncIsNeverTriedAgain) {
  FaultyFileSystem faulty({.at = 3, .error = EIO});
  DurableFile file(faulty, at("a"));
  ASSERT_TRUE(file.write(std::as_bytes(std::span("x"))).ok());
  const Status first = file.commit();
  EXPECT_EQ(first.code(), Errc::kUnavailable);
  EXPECT_EQ(file.commit().message(), first.message());
  EXPECT_EQ(file.write({}).message(), first.message());
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(FileTest, ReportsTheReasonOfAFailedWrite) {
  const Status missing = write_file(files_, at("no/a"), "x");
  EXPECT_EQ(missing.code(), Errc::kNotFound);
  FaultyFileSystem full({.at = 2, .error = ENOSPC});
  const Status status = write_file(full, at("a"), "x");
  EXPECT_EQ(status.code(), Errc::kResourceExhausted);
  EXPECT_EQ(status.message(), at("a").string() + ": cannot write: No space left on device");
}

// Creates every file as /dev/full, where a write fails with ENOSPC.
class FullFileSystem final : public test::FaultyFileSystem {
public:
  FullFileSystem() : FaultyFileSystem({}) {}
  int create(const std::filesystem::path& /*path*/) override {
    return ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  }
};

TEST_F(FileTest, AFullDeviceIsReported) {
  FullFileSystem full;
  EXPECT_EQ(write_file(full, at("a"), "x").code(), Errc::kResourceExhausted);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(FileTest, MakesDirectoriesOnce) {
  ASSERT_TRUE(make_directory(files_, at("d")).ok());
  ASSERT_TRUE(make_directory(files_, at("d")).ok());
  std::ofstream(at("f")).flush();
  EXPECT_THAT(make_directory(files_, at("f")).message(), HasSubstr("not a directory"));
  EXPECT_EQ(make_directory(files_, at("x/y")).code(), Errc::kNotFound);
}

TEST_F(FileTest, RemovesATreeButNotTheTargetsOfLinks) {
  std::filesystem::create_directories(at("victim"));
  std::ofstream(at("victim/precious")) << "kept";
  std::filesystem::create_directories(at("run/a/b"));
  std::ofstream(at("run/a/b/file")) << "x";
  std::ofstream(at("run/.hidden name")) << "x";
  std::filesystem::create_directory_symlink(at("victim"), at("run/a/link"));
  std::filesystem::create_symlink(at("victim/precious"), at("run/link"));
  ASSERT_TRUE(remove_tree(files_, directory_.path(), "run").ok());
  EXPECT_THAT(names(), ElementsAre("victim"));
  EXPECT_EQ(content("victim/precious"), "kept");

  std::filesystem::create_directory_symlink(at("victim"), at("alias"));
  ASSERT_TRUE(remove_tree(files_, directory_.path(), "alias").ok());
  EXPECT_EQ(content("victim/precious"), "kept");
}

TEST_F(FileTest, RemoveTreeStaysInsideItsRoot) {
  EXPECT_EQ(remove_tree(files_, at("."), "..").code(), Errc::kInvalidArgument);
  EXPECT_EQ(remove_tree(files_, at("."), "a/b").code(), Errc::kInvalidArgument);
  EXPECT_EQ(remove_tree(files_, directory_.path(), "none").code(), Errc::kNotFound);
  std::filesystem::path deep = at("deep");
  for (int i = 0; i < 70; ++i) {
    deep /= "d";
  }
  std::filesystem::create_directories(deep);
  EXPECT_THAT(remove_tree(files_, directory_.path(), "deep").message(),
              HasSubstr("directories deep"));
}

TEST(AbsolutePath, HasNoDots) {
  EXPECT_EQ(absolute_path("a/./b/../c"), std::filesystem::current_path() / "a/c");
  EXPECT_EQ(absolute_path("/x/../y"), "/y");
}

}  // namespace
}  // namespace tidemill
