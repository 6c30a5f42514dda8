// SPDX-License-Identifier: Apache-2.0
// Damage to the files on disk is always found and named, and never worked around silently.
#include <gmock/gmock.h>

#include "tests/storage/checkpoint/checkpoint_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class CheckpointDamageTest : public CheckpointTest {
protected:
  CheckpointDamageTest() : CheckpointTest(test::memory_directory_path()) {}

  void SetUp() override {
    CheckpointTest::SetUp();
    const auto store = open();
    commit(*store, 1);
    commit(*store, 2);
  }

  // Opens the store and expects an error that names `path`.
  void expect_refused(const std::filesystem::path& path, const std::string& what) {
    const auto opened = try_open();
    ASSERT_FALSE(opened.ok()) << what;
    EXPECT_THAT(opened.status().message(), HasSubstr(path.string())) << what;
    EXPECT_FALSE(read_last_checkpoint(run()).ok()) << what;
  }
  // The objects of the newest commit, including those that it shares with others.
  [[nodiscard]] std::vector<std::filesystem::path> objects_of_newest() const {
    const ManifestName name = *parse_manifest_name(newest_manifest().filename().string());
    const Manifest manifest = parse_manifest(read_whole(newest_manifest()), name, "newest").value();
    std::vector<std::filesystem::path> paths;
    for (const ObjectRef& object : manifest.objects) {
      paths.push_back(objects() / object.file_name());
    }
    return paths;
  }
};

TEST_F(CheckpointDamageTest, EveryFlippedBitOfTheManifestIsFound) {
  const std::filesystem::path path = newest_manifest();
  const std::string good = read_whole(path);
  int flips = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write_whole(path, bad);
      expect_refused(path, "bit " + std::to_string(bit) + " of byte " + std::to_string(at));
      ++flips;
    }
  }
  write_whole(path, good);
  EXPECT_EQ(open()->last()->step, 2U);
  std::cout << "manifest: " << flips << " flips of " << good.size() << " bytes, all refused\n";
}

TEST_F(CheckpointDamageTest, EveryFlippedBitOfTheStoreFileIsFound) {
  const std::filesystem::path path = commits() / "store.json";
  const std::string good = read_whole(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write_whole(path, bad);
      const auto opened = try_open();
      ASSERT_FALSE(opened.ok()) << at << " " << bit;
      // A changed run id can still be read. Then the commits, or the caller, contradict it.
      EXPECT_THAT(opened.status().message(), HasSubstr(commits().string())) << at << " " << bit;
      ASSERT_FALSE(CheckpointStore::open({run(), "", OnDamage::kRefuse}, files_).ok());
    }
  }
  std::cout << "store.json: " << good.size() * 8 << " flips, all refused\n";
}

TEST_F(CheckpointDamageTest, RandomFlipsInObjectsAreFound) {
  const std::vector<std::filesystem::path> paths = objects_of_newest();
  std::vector<std::filesystem::path> filled;
  for (const auto& path : paths) {
    if (std::filesystem::file_size(path) > 0) {
      filled.push_back(path);
    }
  }
  ASSERT_THAT(filled, SizeIs(3));
  RandomStream random(1);
  constexpr int kFlips = 600;
  for (int i = 0; i < kFlips; ++i) {
    const std::filesystem::path& path = filled[random.below(filled.size())];
    const std::string good = read_whole(path);
    const std::uint64_t bit = random.below(good.size() * 8);
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write_whole(path, bad);
    expect_refused(path, "bit " + std::to_string(bit));
    write_whole(path, good);
  }
  EXPECT_TRUE(try_open().ok());
  std::cout << "objects: " << kFlips << " random flips, all refused\n";
}

TEST_F(CheckpointDamageTest, WrongLengthsMissingFilesAndLinksAreFound) {
  std::vector<std::filesystem::path> paths = objects_of_newest();
  paths.push_back(newest_manifest());
  paths.push_back(commits() / "store.json");
  int cases = 0;
  for (const std::filesystem::path& path : paths) {
    const std::string good = read_whole(path);
    for (const std::string& bad :
         {good.substr(0, good.size() / 2),
          good.substr(0, good.size() - std::min<std::size_t>(1, good.size())), good + '\0',
          good + good + "x", std::string(), std::string(good.size(), '\0')}) {
      if (bad != good) {
        write_whole(path, bad);
        expect_refused(path, "changed length");
        ++cases;
      }
    }
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    expect_refused(path, "link");
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    expect_refused(path, "directory");
    std::filesystem::remove(path);
    if (path.parent_path() == objects() || path.filename() == "store.json") {
      expect_refused(path, "missing");
      ++cases;
    }
    write_whole(path, good);
    cases += 2;
  }
  EXPECT_TRUE(try_open().ok());
  std::cout << "lengths, links, missing files: " << cases << " cases, all refused\n";
}

TEST_F(CheckpointDamageTest, SwappedObjectsAreFound) {
  const std::vector<std::filesystem::path> paths = objects_of_newest();
  for (std::size_t i = 1; i < paths.size(); ++i) {
    const std::string a = read_whole(paths[0]);
    const std::string b = read_whole(paths[i]);
    write_whole(paths[0], b);
    write_whole(paths[i], a);
    EXPECT_EQ(try_open().status().code(), Errc::kCorruptData);
    write_whole(paths[0], a);
    write_whole(paths[i], b);
  }
  EXPECT_TRUE(try_open().ok());
}

TEST_F(CheckpointDamageTest, FilesOfAnotherRunAreFound) {
  const test::TemporaryDirectory other;
  {
    const auto store =
        CheckpointStore::open({other.path(), "run-2", OnDamage::kRefuse}, files_).value();
    for (std::uint64_t step = 1; step <= 3; ++step) {
      commit(*store, step);
    }
  }
  const std::filesystem::path theirs = other.path() / "checkpoints";
  std::filesystem::copy(
      theirs, commits(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing);
  EXPECT_THAT(try_open().status().message(), HasSubstr("belongs to the run run-2, not to run-1"));
}

TEST_F(CheckpointDamageTest, ACommitOfAnotherHistoryIsFound) {
  // The same run, started again elsewhere: its third commit follows other commits.
  const test::TemporaryDirectory twin;
  {
    const auto store =
        CheckpointStore::open({twin.path(), "run-1", OnDamage::kRefuse}, files_).value();
    for (const std::uint64_t step : {11U, 12U, 13U}) {
      commit(*store, step);
    }
  }
  const std::filesystem::path theirs = twin.path() / "checkpoints";
  const std::string third = names_in(theirs, "commit-").back();
  std::filesystem::copy(theirs / third, commits() / third);
  std::filesystem::copy(
      theirs / "objects", objects(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing);
  EXPECT_THAT(try_open().status().message(),
              AllOf(StartsWith((commits() / third).string() +
                               ": does not follow any earlier commit in this folder"),
                    HasSubstr("an earlier commit, of step 2, is intact")));
}

TEST_F(CheckpointDamageTest, AnEarlierCommitIsUsedOnlyIfTheCallerAsks) {
  const std::filesystem::path damaged = newest_manifest();
  write_whole(damaged, "");
  EXPECT_EQ(try_open().status().message(),
            damaged.string() +
                ": damaged: its content does not match the digest in its name; an earlier "
                "commit, of step 1, is intact");
  {
    const auto store = try_open(OnDamage::kUseNewestIntact).value();
    EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(1)));
    ASSERT_THAT(store->damage(), SizeIs(1));
    EXPECT_THAT(store->damage()[0], StartsWith(damaged.string()));
  }
  EXPECT_FALSE(try_open().ok()) << "opening has repaired nothing";
  {
    const auto store = try_open(OnDamage::kUseNewestIntact).value();
    commit(*store, 3);
    EXPECT_TRUE(store->damage().empty());
  }
  EXPECT_FALSE(std::filesystem::exists(damaged));
  EXPECT_EQ(open()->last()->step, 3U);
  EXPECT_GT(open()->last()->sequence, 2U);
}

TEST_F(CheckpointDamageTest, LeftoversAreKeptUntilTheNextCommit) {
  write_whole(newest_manifest(), "");
  write_whole(commits() / ".tmp-1-0", "half");
  write_whole(objects() / ".tmp-1-0", "half");
  const auto store = try_open(OnDamage::kUseNewestIntact).value();
  EXPECT_TRUE(std::filesystem::exists(commits() / ".tmp-1-0"));
  EXPECT_TRUE(std::filesystem::exists(objects() / ".tmp-1-0"));
  commit(*store, 3);
  EXPECT_FALSE(std::filesystem::exists(commits() / ".tmp-1-0"));
  EXPECT_FALSE(std::filesystem::exists(objects() / ".tmp-1-0"));
}

TEST_F(CheckpointDamageTest, WithoutAnIntactCommitNothingIsUsed) {
  for (const std::string& name : names_in(commits(), "commit-")) {
    write_whole(commits() / name, "x");
  }
  for (const OnDamage on_damage : {OnDamage::kRefuse, OnDamage::kUseNewestIntact}) {
    EXPECT_THAT(try_open(on_damage).status().message(), EndsWith("; no earlier commit is intact"));
  }
}

TEST_F(CheckpointDamageTest, ANameAlmostLikeThatOfACommitIsAnError) {
  write_whole(commits() / "commit-3.json", "");
  EXPECT_EQ(try_open().status().message(),
            (commits() / "commit-3.json").string() + ": not the name of a commit");
}

TEST_F(CheckpointDamageTest, DamageAfterTheOpenIsFoundWhenLoading) {
  const auto store = open();
  const std::filesystem::path path = objects_of_newest()[0];
  std::string bytes = read_whole(path);
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  write_whole(path, bytes);
  EXPECT_THAT(store->load_last().status().message(), HasSubstr(path.string()));
}

TEST_F(CheckpointDamageTest, ACommitRepairsTheObjectsItSharesWithDamagedOnes) {
  const auto store = open();
  for (const std::filesystem::path& path : objects_of_newest()) {
    write_whole(path, "rotten");
  }
  const CommitReport report = store->commit(state_at(3)).value();
  EXPECT_EQ(report.objects_written, 4U);
  EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(3)));
}

TEST_F(CheckpointDamageTest, AFileWithAnotherNameIsNotAManifest) {
  const ObjectFolder kept(files_, objects());
  const CommitFolder folder(commits(), kept);
  for (const char* name : {"store.json", "run.yaml", "commit-", ""}) {
    const Status status = folder.read(name).status();
    EXPECT_EQ(status.code(), Errc::kInvalidArgument) << name;
    EXPECT_EQ(status.message(), (commits() / name).string() + ": not the manifest of a commit");
  }
}

}  // namespace
}  // namespace tidemill::storage
