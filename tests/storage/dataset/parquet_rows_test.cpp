// SPDX-License-Identifier: Apache-2.0
// Rows of Parquet files: the same rows as in JSON Lines, and files that are refused. The files are
// in tests/golden/parquet.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "base/json/json.hpp"
#include "storage/dataset/dataset.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kGolden = TIDEMILL_TEST_DIR "/golden/parquet/";

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the whole row as the reader of JSON understands it, which forgets how it is spelled.
std::string fields_of(const PromptRow& row) {
  return parse_json(row.fields).value().to_line();
}

template <class Row>
std::unique_ptr<Dataset<Row>> open_golden(const std::string& name, DatasetOptions options = {}) {
  options.paths = {kGolden + name};
  auto data = Dataset<Row>::open(options);
  EXPECT_TRUE(data.ok()) << data.status().message();
  return data.ok() ? std::move(data).value() : nullptr;
}

class ParquetRowsTest : public ::testing::Test {
protected:
  ParquetRowsTest() { options_.temporary_folder = folder_.path().string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = (folder_.path() / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  [[nodiscard]] Result<std::unique_ptr<PromptDataset>> open(const std::string& path) {
    options_.paths = {path};
    return PromptDataset::open(options_);
  }

  // Opens damaged bytes, which may be refused but must not crash, and returns whether they were.
  bool is_refused(const std::string& bytes) {
    const std::string path = write("damaged.parquet", bytes);
    const auto data = open(path);
    if (data.ok()) {
      for (std::uint64_t i = 0; i < data.value()->num_rows(); ++i) {
        EXPECT_TRUE(data.value()->row_in_file_order(i).ok());
      }
      return false;
    }
    const std::string& message = data.status().message();
    EXPECT_THAT(message, StartsWith(path + ":"));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 600U) << message;
    return true;
  }

  test::TemporaryDirectory folder_{test::memory_directory_path()};
  DatasetOptions options_;
};

TEST_F(ParquetRowsTest, PromptsAreThoseOfJsonLines) {
  std::size_t num_rows = 0;
  for (const std::string name : {"prompts", "messages"}) {
    const auto parquet = open_golden<PromptRow>(name + ".parquet");
    const auto lines = open_golden<PromptRow>(name + ".jsonl");
    ASSERT_TRUE(parquet != nullptr && lines != nullptr);
    ASSERT_EQ(parquet->num_rows(), lines->num_rows());
    for (std::uint64_t i = 0; i < lines->num_rows(); ++i) {
      const PromptRow row = parquet->row_in_file_order(i).value();
      const PromptRow expected = lines->row_in_file_order(i).value();
      EXPECT_EQ(row.prompt, expected.prompt);
      EXPECT_EQ(row.messages, expected.messages);
      EXPECT_EQ(row.reference_answer, expected.reference_answer);
      EXPECT_EQ(fields_of(row), fields_of(expected));
      EXPECT_EQ(row.location.line, expected.location.line);
      EXPECT_EQ(row.location.file, kGolden + name + ".parquet");
      ++num_rows;
    }
  }
  EXPECT_EQ(num_rows, 19U);
}

TEST_F(ParquetRowsTest, RowsToTrainOnAreThoseOfJsonLines) {
  std::size_t num_rows = 0;
  for (const std::string name : {"messages", "tokens", "sums"}) {
    const auto parquet = open_golden<SupervisedRow>(name + ".parquet");
    const auto lines = open_golden<SupervisedRow>(name + ".jsonl");
    ASSERT_TRUE(parquet != nullptr && lines != nullptr);
    ASSERT_EQ(parquet->num_rows(), lines->num_rows());
    for (std::uint64_t i = 0; i < lines->num_rows(); ++i) {
      const SupervisedRow row = parquet->row_in_file_order(i).value();
      const SupervisedRow expected = lines->row_in_file_order(i).value();
      EXPECT_EQ(row.kind, expected.kind);
      EXPECT_EQ(row.prompt, expected.prompt);
      EXPECT_EQ(row.continuation, expected.continuation);
      EXPECT_EQ(row.messages, expected.messages);
      EXPECT_EQ(row.input_ids, expected.input_ids);
      EXPECT_EQ(row.loss_mask, expected.loss_mask);
      ++num_rows;
    }
  }
  EXPECT_EQ(num_rows, 61U);
}

TEST_F(ParquetRowsTest, ShuffledEpochsAreThoseOfJsonLines) {
  DatasetOptions options;
  options.seed = 7;
  options.epochs = 3;
  const auto parquet = open_golden<SupervisedRow>("tokens.parquet", options);
  const auto lines = open_golden<SupervisedRow>("tokens.jsonl", options);
  for (std::uint64_t position = 0; position < 120; ++position) {
    EXPECT_EQ(parquet->row_at(position).value().input_ids,
              lines->row_at(position).value().input_ids);
  }
  EXPECT_EQ(parquet->row_at(120).status().code(), Errc::kNotFound);
}

TEST_F(ParquetRowsTest, FilesOfAllKindsMayBeMixed) {
  options_.order = RowOrder::kFileOrder;
  const std::string sums = bytes_of_file(kGolden + "sums.parquet");
  write("a.jsonl", "{\"prompt\": \"a\"}\n");
  write("b.parquet", sums);
  write("c.json", "[{\"prompt\": \"c\"}]");
  write("d.parquet", bytes_of_file(kGolden + "prompts.parquet"));
  const auto data = open((folder_.path() / "*").string()).value();
  ASSERT_EQ(data->num_rows(), 24U);
  EXPECT_EQ(data->row_at(0).value().prompt, "a");
  EXPECT_EQ(data->row_at(1).value().prompt, "10+20=");
  EXPECT_EQ(data->row_at(12).value().prompt, "21+31=");
  EXPECT_EQ(data->row_at(13).value().prompt, "c");
  EXPECT_EQ(data->row_at(14).value().prompt, "0: 1+1=");
  EXPECT_EQ(data->row_at(24).value().prompt, "a");
}

TEST_F(ParquetRowsTest, TheDigestCoversTheBytesOfTheFile) {
  std::string sums = bytes_of_file(kGolden + "sums.parquet");
  const std::string path = write("sums.parquet", sums);
  const std::string digest = open(path).value()->digest();
  EXPECT_EQ(open(path).value()->digest(), digest);
  const std::size_t writer = sums.rfind("parquet-cpp");  // the name of the program that wrote it
  ASSERT_NE(writer, std::string::npos);
  sums[writer] = 'q';
  write("sums.parquet", sums);
  EXPECT_NE(open(path).value()->digest(), digest);
}

TEST_F(ParquetRowsTest, RowsStayTheSameIfTheFileIsReplaced) {
  options_.order = RowOrder::kFileOrder;
  const std::string path = write("sums.parquet", bytes_of_file(kGolden + "sums.parquet"));
  const auto data = open(path).value();
  write("sums.parquet", "");
  EXPECT_EQ(data->row_at(3).value().prompt, "13+23=");
}

TEST_F(ParquetRowsTest, NamesFileAndRowOfABadRow) {
  const std::string path = kGolden + "bad_rows.parquet";
  EXPECT_EQ(open(path).status().message(), path + ":2: score: is not a finite number");
  options_.on_error = OnRowError::kSkip;
  options_.max_line_bytes = 100;
  options_.order = RowOrder::kFileOrder;
  const auto data = open(path).value();
  EXPECT_EQ(data->num_rows(), 2U);
  EXPECT_EQ(data->row_at(0).value().prompt, "a");
  EXPECT_EQ(data->row_at(1).value().location.to_string(), path + ":6");
  EXPECT_THAT(data->first_skipped(),
              ElementsAre(path + ":2: score: is not a finite number",
                          path + ":3: has answer, score; needs exactly one of: prompt | messages",
                          path + ":4: score: is not a finite number",
                          path + ":5: row is longer than 100 bytes"));
}

TEST_F(ParquetRowsTest, RefusesWhatJsonLacks) {
  struct Refused {
    std::string name;
    std::string message;
  };
  const std::string advice = ", which JSON lacks; remove the column or convert it to text";
  const std::vector<Refused> cases = {
      {"timestamp", "column extra has the type timestamp[us, tz=UTC]" + advice},
      {"decimal", "column extra has the type decimal128(10, 2)" + advice},
      {"binary", "column extra[].bytes has the type binary" + advice},
      {"map", "column extra has the type map<string, int32 ('extra')>" + advice},
      {"no_columns", "has no columns"},
      {"empty", "no usable row"},
      {"huge", "needs more than 512 MiB to decode; write it with smaller pages or shorter rows"},
      {"expanding", "its rows are more than 1000 times as large as the file"},
  };
  options_.on_error = OnRowError::kSkip;
  for (const Refused& c : cases) {
    const std::string path = kGolden + c.name + ".parquet";
    EXPECT_EQ(open(path).status().message(), path + ": " + c.message);
  }
  const std::string deep = kGolden + "deep.parquet";
  EXPECT_THAT(open(deep).status().message(),
              StartsWith(deep + ": is not a Parquet file that can be read: "));
  EXPECT_EQ(open(deep).status().code(), Errc::kInvalidArgument);
}

TEST_F(ParquetRowsTest, LimitsTheNumberOfRows) {
  options_.max_rows = 11;
  const std::string path = kGolden + "sums.parquet";
  const Status status = open(path).status();
  EXPECT_EQ(status.code(), Errc::kResourceExhausted);
  EXPECT_EQ(status.message(), path + ": has more than 11 rows");
}

TEST_F(ParquetRowsTest, NamesTheFolderOfTemporaryFiles) {
  options_.temporary_folder = (folder_.path() / "missing").string();
  const Status status = open(kGolden + "sums.parquet").status();
  EXPECT_THAT(status.message(), StartsWith(options_.temporary_folder + ": cannot create a "));
  EXPECT_THAT(status.message(), HasSubstr("; TMPDIR names another folder"));
  options_.temporary_folder = folder_.path().string();
  EXPECT_TRUE(open(kGolden + "sums.parquet").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "the temporary file has no name";
}

TEST_F(ParquetRowsTest, RefusesTruncatedFiles) {
  const std::string whole = bytes_of_file(kGolden + "prompts.parquet");
  for (std::size_t size = 4; size < whole.size(); size += 7) {
    EXPECT_TRUE(is_refused(whole.substr(0, size))) << size << " bytes";
  }
}

TEST_F(ParquetRowsTest, SurvivesFlippedBytes) {
  options_.on_error = OnRowError::kSkip;
  options_.max_line_bytes = 1U << 16U;
  std::size_t num_files = 0;
  for (const std::string name : {"prompts", "messages", "tokens", "sums"}) {
    const std::string whole = bytes_of_file(kGolden + name + ".parquet");
    std::size_t refused = 0;
    for (std::size_t i = 4; i < whole.size(); i += 11) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (i % 2 == 0 ? 0xFF : 1 << (i % 8)));
      refused += is_refused(damaged) ? 1 : 0;
    }
    // Names and statistics may change without notice.
    EXPECT_GT(refused, whole.size() / 60) << name;
    ++num_files;
  }
  EXPECT_EQ(num_files, 4U);
}

TEST_F(ParquetRowsTest, ChecksumsFindDamagedPages) {
  std::string damaged = bytes_of_file(kGolden + "messages.parquet");
  damaged[damaged.size() / 4] ^= 1;
  const std::string path = write("damaged.parquet", damaged);
  EXPECT_THAT(open(path).status().message(), HasSubstr("CRC checksum verification failed"));
}

}  // namespace
}  // namespace tidemill::storage
