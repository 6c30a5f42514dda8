// SPDX-License-Identifier: Apache-2.0
// Tests storage/run_files/record_marks.hpp: lost and changed records are noticed, and what is left
// can be kept.
#include "storage/run_files/record_marks.hpp"

#include <fstream>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "base/files/file.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/sample_line.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using storage::RecordMarks;

std::string digest_of(const std::string& text) {
  return digest_bytes(std::as_bytes(std::span(text)));
}

// A run with three recorded steps, of which the first two are committed.
class RecordMarksTest : public ::testing::Test {
protected:
  RecordMarksTest() {
    for (std::uint64_t step = 1; step <= 3; ++step) {
      metrics_ += storage::write_metrics_line({"train", step, {{"loss", 0.5}}});
      storage::SampleLine sample;
      sample.step = step;
      samples_ += storage::write_sample_line(sample);
      if (step == 2) {
        marks_ = {metrics_.size(), samples_.size(), digest_of(metrics_), digest_of(samples_)};
      }
    }
    write("metrics.jsonl", metrics_);
    write("samples.jsonl", samples_);
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << text;
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string checked() const {
    return storage::check_records(folder_.path(), marks_).status().message();
  }

  Result<storage::RemainingRecords> kept() {
    PosixFileSystem files;
    return storage::keep_readable_records(files, folder_.path(), marks_, 2);
  }

  TemporaryDirectory folder_;
  std::string metrics_;
  std::string samples_;
  RecordMarks marks_;
};

TEST_F(RecordMarksTest, IntactRecordsAreAccepted) {
  EXPECT_EQ(checked(), "");
  marks_.metrics_digest = marks_.samples_digest = "";  // of an older commit
  EXPECT_EQ(checked(), "");
  EXPECT_TRUE(storage::check_record_sizes(folder_.path(), marks_).ok());
}

TEST_F(RecordMarksTest, FilesWithoutMarkedBytesNeedNotExist) {
  std::filesystem::remove(at("metrics.jsonl"));
  std::filesystem::remove(at("samples.jsonl"));
  EXPECT_TRUE(storage::check_records(folder_.path(), {}).ok());
  EXPECT_TRUE(storage::check_record_sizes(folder_.path(), {}).ok());
}

TEST_F(RecordMarksTest, AMissingFileIsNamed) {
  std::filesystem::remove(at("metrics.jsonl"));
  EXPECT_EQ(checked(), at("metrics.jsonl") + ": missing, but the last commit recorded " +
                           std::to_string(marks_.metrics_bytes) + " bytes");
  EXPECT_EQ(storage::check_record_sizes(folder_.path(), marks_).message(),
            at("metrics.jsonl") + ": was removed during the run");
}

TEST_F(RecordMarksTest, AShorterFileIsNamed) {
  write("samples.jsonl", samples_.substr(0, marks_.samples_bytes - 1));
  EXPECT_EQ(checked(), at("samples.jsonl") + ": " + std::to_string(marks_.samples_bytes - 1) +
                           " bytes, but the last commit recorded " +
                           std::to_string(marks_.samples_bytes));
  EXPECT_EQ(storage::check_record_sizes(folder_.path(), marks_).message(),
            at("samples.jsonl") + ": was shortened during the run");
}

TEST_F(RecordMarksTest, AFlippedByteIsNoticed) {
  for (const std::size_t byte : {std::size_t{0}, std::size_t{marks_.metrics_bytes - 1}}) {
    std::string changed = metrics_;
    changed[byte] ^= 1;
    write("metrics.jsonl", changed);
    EXPECT_EQ(checked(), at("metrics.jsonl") + ": the " + std::to_string(marks_.metrics_bytes) +
                             " bytes that the last commit recorded have changed")
        << byte;
  }
  std::string changed = metrics_;
  changed[marks_.metrics_bytes] ^= 1;  // not part of the commit
  write("metrics.jsonl", changed);
  EXPECT_EQ(checked(), "");
}

TEST_F(RecordMarksTest, WholeLinesRemainOfAShortenedFile) {
  write("samples.jsonl", samples_.substr(0, marks_.samples_bytes - 1));
  std::filesystem::remove(at("metrics.jsonl"));
  const auto left = kept();
  ASSERT_TRUE(left.ok()) << left.status().to_string();
  const std::string first = samples_.substr(0, samples_.find('\n') + 1);
  EXPECT_EQ(left.value().marks, (RecordMarks{0, first.size(), digest_of(""), digest_of(first)}));
  EXPECT_TRUE(storage::check_records(folder_.path(), left.value().marks).ok());
}

// A line is cut out of the middle, so that lines of the uncommitted step move before the mark.
TEST_F(RecordMarksTest, LinesOfLaterStepsDoNotRemain) {
  const std::size_t line = metrics_.find('\n') + 1;
  write("metrics.jsonl", metrics_.substr(line));
  const auto left = kept();
  ASSERT_TRUE(left.ok()) << left.status().to_string();
  EXPECT_EQ(left.value().marks.metrics_bytes, line);  // all lines have the same size
  EXPECT_EQ(left.value().marks.samples_bytes, marks_.samples_bytes);
  EXPECT_EQ(left.value().marks.samples_digest, marks_.samples_digest);
}

TEST_F(RecordMarksTest, TheHashersOfCheckedRecordsContinue) {
  const auto checked = storage::check_records(folder_.path(), marks_);
  ASSERT_TRUE(checked.ok()) << checked.status().to_string();
  const std::string rest = metrics_.substr(marks_.metrics_bytes);
  checked.value().metrics->update(std::as_bytes(std::span(rest)));
  EXPECT_EQ(checked.value().metrics->digest(), digest_of(metrics_));
  EXPECT_EQ(checked.value().samples->digest(), marks_.samples_digest);
}

TEST_F(RecordMarksTest, LinesThatCannotBeReadAreRemoved) {
  const std::size_t line = metrics_.find('\n') + 1;
  std::string damaged = metrics_;
  damaged[0] = '#';
  write("metrics.jsonl", damaged);
  const auto left = kept();
  ASSERT_TRUE(left.ok()) << left.status().to_string();
  EXPECT_EQ(left.value().dropped_metrics, 1U);
  EXPECT_EQ(left.value().dropped_samples, 0U);
  EXPECT_EQ(left.value().marks.metrics_bytes, line);
  EXPECT_EQ(left.value().marks.metrics_digest, digest_of(metrics_.substr(line, line)));
  EXPECT_TRUE(storage::check_records(folder_.path(), left.value().marks).ok());
}

// Lines of a committed step may be recorded after its commit. The resumed run records them again.
TEST_F(RecordMarksTest, NothingRemainsBehindTheMark) {
  storage::SampleLine sample;
  sample.step = 2;
  write("metrics.jsonl", metrics_.substr(0, marks_.metrics_bytes) +
                             storage::write_metrics_line({"eval", 2, {{"eval_loss", 0.5}}}) +
                             metrics_.substr(marks_.metrics_bytes));
  write("samples.jsonl", samples_.substr(0, marks_.samples_bytes) +
                             storage::write_sample_line(sample) +
                             samples_.substr(marks_.samples_bytes));
  const auto left = kept();
  ASSERT_TRUE(left.ok()) << left.status().to_string();
  EXPECT_EQ(left.value().marks, marks_);
}

}  // namespace
}  // namespace tidemill::test
