// SPDX-License-Identifier: Apache-2.0
// Event files, byte for byte, and how much of a damaged file is found.
#include "storage/events/event_file.hpp"

#include <array>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "storage/events/crc32c.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::storage {
namespace {

using namespace std::string_literals;

TEST(Crc32cTest, MatchesTheExamplesOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string rising;
  for (char i = 0; i < 32; ++i) {
    rising += i;
  }
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(crc32c(std::string(rising.rbegin(), rising.rend())), 0x113FDB5CU);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);  // the usual check value
  EXPECT_EQ(crc32c(""), 0U);
}

// Wall time 1.5, step 300, {"a": 2.0}, encoded by hand from the rules of the encoding.
TEST(EventFileTest, ARecordIsAFramedProtocolBuffer) {
  const std::array<EventScalar, 1> scalars{{{"a", 2.0F}}};
  const std::string record = event_record({1.5, 300}, scalars);
  const std::string data =
      "\x09\x00\x00\x00\x00\x00\x00\xF8\x3F"  // 1: 1.5
      "\x10\xAC\x02"                          // 2: 300
      "\x2A\x0A"                              // 5: 10 bytes
      "\x0A\x08"                              //   1: 8 bytes
      "\x0A\x01"                              //     1: 1 byte
      "a"
      "\x15\x00\x00\x00\x40"s;  //     2: 2.0
  ASSERT_EQ(record.size(), 12 + data.size() + 4);
  EXPECT_EQ(record.substr(0, 8), "\x18\x00\x00\x00\x00\x00\x00\x00"s);
  EXPECT_EQ(record.substr(12, data.size()), data);
  const std::uint32_t crc = crc32c(data);
  const std::uint32_t mask = ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U;
  EXPECT_EQ(record.substr(12 + data.size(), 1)[0], static_cast<char>(mask & 0xFFU));
  EXPECT_EQ(record.back(), static_cast<char>(mask >> 24U));
}

TEST(EventFileTest, TheFirstRecordNamesTheVersion) {
  EXPECT_NE(first_event_record(0.0).find("\x1A\x0D"
                                         "brain.Event:2"),
            std::string::npos);
}

TEST(EventFileTest, StepsMayBeAnyInteger) {
  // A negative one takes ten bytes.
  EXPECT_EQ(event_record({0.0, -1}, {}).size(), event_record({0.0, 1}, {}).size() + 9);
}

TEST(EventFileTest, NumbersTakeAsFewBytesAsPossible) {
  const std::size_t smallest = event_record({0.0, 0}, {}).size();
  for (std::size_t bytes = 1; bytes < 9; ++bytes) {  // each holds 7 bits
    const std::int64_t largest = (std::int64_t{1} << (7 * bytes)) - 1;
    EXPECT_EQ(event_record({0.0, largest}, {}).size(), smallest + bytes - 1) << largest;
    EXPECT_EQ(event_record({0.0, largest + 1}, {}).size(), smallest + bytes) << largest;
  }
}

class ExtentTest : public ::testing::Test {
protected:
  [[nodiscard]] EventExtent found(const std::string& bytes, std::uint64_t max_records = 100) const {
    const auto path = folder_.path() / "events";
    std::ofstream(path, std::ios::binary) << bytes;
    const auto extent = find_event_records(path, max_records);
    EXPECT_TRUE(extent.ok()) << extent.status().to_string();
    return extent.ok() ? extent.value() : EventExtent{};
  }
  test::TemporaryDirectory folder_;
  const std::string first_ = first_event_record(1.0);
  const std::string second_ = event_record({2.0, 1}, {});
};

TEST_F(ExtentTest, CountsRecordsUpToTheNumberAskedFor) {
  EXPECT_EQ(found(first_ + second_).num_records, 2U);
  EXPECT_EQ(found(first_ + second_).bytes, first_.size() + second_.size());
  EXPECT_EQ(found(first_ + second_, 1).bytes, first_.size());
  EXPECT_EQ(found("").num_records, 0U);
  const auto none = find_event_records(folder_.path() / "none", 5);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value().num_records, 0U);
}

TEST_F(ExtentTest, EndsBeforeARecordThatIsCutOrDamagedAtAnyByte) {
  for (std::size_t at = 0; at < second_.size(); ++at) {
    EXPECT_EQ(found(first_ + second_.substr(0, at)).bytes, first_.size()) << at;
    std::string damaged = second_;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_EQ(found(first_ + damaged).bytes, first_.size()) << at;
  }
}

}  // namespace
}  // namespace tidemill::storage
