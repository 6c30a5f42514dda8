// SPDX-License-Identifier: Apache-2.0
// Tests the file store: what it keeps, refuses and removes.
#include "tests/storage/jobs/job_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

namespace tidemill::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class FileStoreTest : public JobsTest {
protected:
  void SetUp() override { reopen(); }
  std::vector<std::string> listed(const FileQuery& query, bool* has_more = nullptr) {
    const auto page = files().list(query);
    EXPECT_TRUE(page.ok()) << page.status().to_string();
    std::vector<std::string> ids;
    for (const StoredFile& file : page.value().entries) {
      ids.push_back(file.id);
    }
    if (has_more != nullptr) {
      *has_more = page.value().has_more;
    }
    return ids;
  }
};

TEST_F(FileStoreTest, KeepsFiles) {
  const auto stored = put("one\ntwo\n", "räte.jsonl");
  ASSERT_TRUE(stored.ok()) << stored.status().to_string();
  const StoredFile file = stored.value();
  EXPECT_THAT(file.id, ::testing::MatchesRegex("file-[A-Za-z0-9]+"));
  EXPECT_EQ(file.id.size(), 29U);
  EXPECT_EQ(file, (StoredFile{file.id, "räte.jsonl", "fine-tune", 8, 17}));
  reopen();
  EXPECT_EQ(files().find(file.id).value(), file);
  EXPECT_EQ(read(file.id, 0, 8).value(), "one\ntwo\n");
  EXPECT_EQ(read(file.id, 4, 3).value(), "two");
  EXPECT_EQ(read(file.id, 4, 5).status().code(), Errc::kCorruptData);  // beyond the end
}

TEST_F(FileStoreTest, RefusesWhatItDoesNotStore) {
  EXPECT_EQ(put("x", "a", "assistants").status().message(),
            R"(purpose: must be "fine-tune", and not "assistants")");
  EXPECT_THAT(put("", "a").status().message(), StartsWith("file: must have 1 to 536870912 bytes"));
  EXPECT_THAT(put("x", "").status().message(), StartsWith("filename: "));
  EXPECT_THAT(put("x", "a\nb").status().message(), StartsWith("filename: "));
  EXPECT_THAT(put("x", "\xFF").status().message(), StartsWith("filename: "));
  EXPECT_THAT(put("x", std::string(513, 'x')).status().message(), StartsWith("filename: "));
  EXPECT_TRUE(put("x", "r", kResultsPurpose).ok());
  EXPECT_EQ(names().size(), 1U);
}

TEST_F(FileStoreTest, BoundsWhatItStores) {
  file_limits_ = {10, 25, 4};
  reopen();
  EXPECT_EQ(put("12345678901").status().code(), Errc::kInvalidArgument);
  const std::string first = put_file("1234567890");
  put_file("1234567890");
  EXPECT_EQ(put("123456").status().code(), Errc::kResourceExhausted);
  put_file("12345");
  ASSERT_TRUE(files().remove(first).ok());
  put_file("1");
  put_file("2");
  EXPECT_EQ(put("3").status().message(),
            "file: the server has 4 files, its limit; delete some of them");
  EXPECT_EQ(names().size(), 4U);
}

TEST_F(FileStoreTest, ListsInPages) {
  const std::string a = put_file("a");
  const std::string b = put("b", "b", kResultsPurpose).value().id;
  const std::string c = put_file("c");
  bool has_more = false;
  EXPECT_THAT(listed({}), ElementsAre(c, b, a));
  EXPECT_THAT(listed({"", "", 2}, &has_more), ElementsAre(c, b));
  EXPECT_TRUE(has_more);
  EXPECT_THAT(listed({"", b, 2}, &has_more), ElementsAre(a));
  EXPECT_FALSE(has_more);
  EXPECT_THAT(listed({"", a, 2, FileOrder::kOldestFirst}), ElementsAre(b, c));
  EXPECT_THAT(listed({"fine-tune", "", 9}), ElementsAre(c, a));
  EXPECT_THAT(listed({"batch", "", 9}), IsEmpty());
  EXPECT_EQ(files().list({"", "file-x"}).status().code(), Errc::kNotFound);
}

TEST_F(FileStoreTest, RemovesFiles) {
  const std::string id = put_file("abc");
  auto open = files().open_bytes(id);
  ASSERT_TRUE(files().remove(id).ok());
  std::string text(3, ' ');
  ASSERT_TRUE(open.value().read_at(0, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "abc");
  EXPECT_EQ(files().remove(id).code(), Errc::kNotFound);
  EXPECT_EQ(files().open_bytes(id).status().message(), '"' + id + "\": there is no such file");
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(FileStoreTest, KeepsTheFilesOfJobsThatHaveNotEnded) {
  const std::string training = put_file("a");
  const std::string validation = put_file("b");
  JobSpec spec = some_spec(training);
  spec.validation_file = validation;
  const std::string job = jobs().create(spec, 1).value().id;
  for (const std::string& id : {training, validation}) {
    EXPECT_EQ(files().remove(id).message(), id + ": the job " + job + " uses the file");
  }
  EXPECT_EQ(read(training, 0, 1).value(), "a");
  ASSERT_TRUE(jobs().change(job, change_to(JobState::kCancelled)).ok());
  EXPECT_TRUE(files().remove(training).ok());
  EXPECT_TRUE(files().remove(validation).ok());
}

TEST_F(FileStoreTest, KeepsTheExampleThatItOffers) {
  ASSERT_TRUE(
      files()
          .put_example("file-example", {"a.jsonl", std::string(kFineTunePurpose), 1}, bytes_of("a"))
          .ok());
  EXPECT_EQ(files().remove("file-example").code(), Errc::kInvalidArgument);
  EXPECT_EQ(read("file-example", 0, 1).value(), "a");
  reopen();  // without the example
  EXPECT_TRUE(files().remove("file-example").ok());
}

TEST_F(FileStoreTest, RemovesIncompleteFilesAndSetsUnlistedOnesAside) {
  const std::string id = put_file("abc");
  const auto write = [&](const std::string& name) {
    std::ofstream(root() / "files" / name) << "x";
  };
  const std::string orphan = "file-" + std::string(24, 'x');
  write(orphan);
  write(".tmp-1-0");
  write("notes.txt");
  write("file-short");
  reopen();
  std::vector<std::string> expected = {"file-short", "notes.txt", id};
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> found = names();
  std::erase_if(found, [](const std::string& name) { return name.starts_with(".tmp"); });
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(std::filesystem::exists(root() / "unlisted" / orphan));
}

TEST_F(FileStoreTest, ReportsBytesThatAreMissing) {
  const std::string lost = put_file("abc");
  const std::string cut = put_file("abc");
  std::filesystem::remove(root() / "files" / lost);
  std::filesystem::resize_file(root() / "files" / cut, 2);
  reopen();
  EXPECT_EQ(files().open_bytes(lost).status().code(), Errc::kCorruptData);
  EXPECT_THAT(files().open_bytes(cut).status().message(), HasSubstr("has 2 bytes instead of 3"));
  EXPECT_TRUE(files().remove(lost).ok());
}

TEST_F(FileStoreTest, LeavesNothingOnAFullDisk) {
  put_file("abc");
  test::FaultyFileSystem counting({});
  stores_ = {};
  stores_ = try_open(counting).value();
  const int before = counting.num_calls();
  ASSERT_TRUE(put("abc").ok());
  const int calls = counting.num_calls() - before;
  ASSERT_GE(calls, 5);  // create, write, sync, rename, sync of the directory
  for (int call = 1; call <= calls; ++call) {
    stores_ = {};
    test::FaultyFileSystem failing({before + call, ENOSPC});
    stores_ = try_open(failing).value();
    const std::vector<std::string> kept = names();
    const Status status = put("abcdef").status();
    EXPECT_EQ(status.code(), Errc::kResourceExhausted) << call << ": " << status.to_string();
    EXPECT_EQ(names(), kept) << call;
    EXPECT_EQ(files().list({}).value().entries.size(), kept.size()) << call;
  }
  reopen();
}

TEST_F(FileStoreTest, LeavesNothingIfTheDatabaseIsFull) {
  max_database_bytes_ = 100'000;
  reopen();
  std::vector<std::string> stored;
  Status status;
  while (status.ok() && stored.size() < 1000) {
    auto one = put("x", std::string(500, 'n'));
    status = one.status();
    if (one.ok()) {
      stored.push_back(one.value().id);
    }
  }
  EXPECT_EQ(status.code(), Errc::kResourceExhausted) << status.to_string();
  EXPECT_GT(stored.size(), 10U);
  EXPECT_EQ(names().size(), stored.size());
  ASSERT_TRUE(files().remove(stored.back()).ok());
  EXPECT_TRUE(put("x", std::string(500, 'n')).ok());  // the store goes on
  reopen();
  EXPECT_EQ(names().size(), stored.size());
}

}  // namespace
}  // namespace tidemill::storage
