// SPDX-License-Identifier: Apache-2.0
// A job directory with its stores.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "storage/jobs/file_store.hpp"
#include "storage/jobs/job_store.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::storage {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline JobSpec some_spec(const std::string& training_file) {
  JobSpec spec;
  spec.model = "base";
  spec.training_file = training_file;
  spec.suffix = "mine";
  spec.metadata = {{"team", "a"}, {"empty", ""}};
  spec.method = JobMethod::kReinforcement;
  spec.hyperparameters = {8, 0, 0.5, 10, 0};
  spec.grader = {GraderKind::kStringCheck, "equal",        StringOperation::kIlike,
                 "{{sample.output_text}}", "\"quoted\"\n", ""};
  spec.overrides = R"({"train.steps": 4})";
  return spec;
}

inline JobEvent some_event(std::string message, EventType type = EventType::kMessage) {
  JobEvent event;
  event.created_at = 50;
  event.type = type;
  event.message = std::move(message);
  event.data = type == EventType::kMetrics ? R"({"step": 1})" : "";
  return event;
}

inline JobChange change_to(JobState state, std::string message = "changed") {
  JobChange change;
  change.now = 60;
  change.state = state;
  change.event = some_event(std::move(message));
  return change;
}

/// Opens the stores in a directory of its own.
class JobsTest : public ::testing::Test {
protected:
  struct Stores {
    std::shared_ptr<JobDirectory> directory;
    std::shared_ptr<FileStore> files;
    std::shared_ptr<JobStore> jobs;
  };

  [[nodiscard]] std::filesystem::path root() const { return folder_.path() / "jobs"; }

  Result<Stores> try_open(FileSystem& files) {
    JobDirectoryOptions options;
    options.path = root();
    options.max_database_bytes = max_database_bytes_;
    options.random_bits = [this] { return random_.bits(); };
    TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<JobDirectory> directory,
                              JobDirectory::open(std::move(options), files));
    TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<FileStore> store,
                              FileStore::open(directory, file_limits_));
    auto jobs = std::make_shared<JobStore>(directory, job_limits_);
    return Stores{std::move(directory), std::move(store), std::move(jobs)};
  }

  // Closes the stores and opens them again.
  void reopen() {
    stores_ = {};
    auto opened = try_open(machine_);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    stores_ = std::move(opened).value();
  }

  FileStore& files() { return *stores_.files; }
  JobStore& jobs() { return *stores_.jobs; }

  Result<StoredFile> put(std::string_view text, const std::string& name = "a.jsonl",
                         std::string_view purpose = kFineTunePurpose) {
    return files().put({name, std::string(purpose), 17}, bytes_of(text));
  }
  std::string put_file(std::string_view text) {
    const auto stored = put(text);
    EXPECT_TRUE(stored.ok()) << stored.status().to_string();
    return stored.ok() ? stored.value().id : "";
  }
  Result<std::string> read(const std::string& id, std::uint64_t offset, std::size_t size) {
    TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, files().open_bytes(id));
    std::string text(size, '\0');
    TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, std::as_writable_bytes(std::span(text))));
    return text;
  }
  std::string create_job() {
    const auto job = jobs().create(some_spec(put_file("{}\n")), 40);
    EXPECT_TRUE(job.ok()) << job.status().to_string();
    return job.ok() ? job.value().id : "";
  }
  // The names in `files/`.
  std::vector<std::string> names() { return list_directory(root() / "files").value(); }

  test::TemporaryDirectory folder_{test::memory_directory_path()};  // thousands of syncs
  PosixFileSystem machine_;
  RandomStream random_{5};
  FileLimits file_limits_;
  JobLimits job_limits_;
  std::uint64_t max_database_bytes_ = std::uint64_t{1} << 30U;
  Stores stores_;
};

}  // namespace tidemill::storage
