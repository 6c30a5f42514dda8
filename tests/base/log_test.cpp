// SPDX-License-Identifier: Apache-2.0
// The structured log: what reaches sinks, and that a record stays one line.
#include "base/log.hpp"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill {
namespace {

using ::testing::ElementsAre;

class ListSink final : public LogSink {
public:
  explicit ListSink(std::vector<std::string>& lines) : lines_(lines) {}
  void write(const LogRecord& record) override {
    lines_.push_back(std::string(log_level_name(record.level)) + ' ' +
                     std::to_string(record.time.time_since_epoch().count()) + ' ' +
                     format_record(record));
  }
  void flush() override { lines_.emplace_back("flush"); }

private:
  std::vector<std::string>& lines_;
};

TEST(LogTest, RecordsCarryLevelTimeAndValues) {
  std::vector<std::string> lines;
  ManualClock clock;
  {
    Log log(clock);
    log.add_sink(std::make_unique<ListSink>(lines));
    log.debug("too quiet");
    clock.advance(Duration(5));
    log.info("step done", {{"step", 3}, {"loss", 0.25}, {"ok", true}, {"run", "a b"}});
    log.error("gone");
  }
  EXPECT_THAT(lines, ElementsAre("info 5 step done step=3 loss=0.25 ok=true run=\"a b\"",
                                 "error 5 gone", "flush"));
}

TEST(LogTest, AValueNeverBreaksTheLine) {
  const std::vector<LogField> fields{{"a", "x\ny"},
                                     {"b", "say \"no\""},
                                     {"c", ""},
                                     {"d", "k=v"},
                                     {"e", std::string_view("\x01", 1)},
                                     {"f", "a \\"},
                                     {"g", "a\\b"}};
  const LogRecord record{LogLevel::kInfo, {}, "one\ntwo\x1b[31m\tthree", fields};
  EXPECT_EQ(format_record(record),
            "one two [31m three a=\"x\\ny\" b=\"say \\\"no\\\"\" c=\"\" d=\"k=v\" e=\"?\" f=\"a "
            "\\\\\" g=a\\b");
}

TEST(LogTest, LevelsParse) {
  ASSERT_TRUE(parse_log_level("warning").ok());
  EXPECT_EQ(parse_log_level("warning").value(), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("loud").status().message(),
            "log level needs one of: debug, info, warning, error");
}

TEST(LogTest, ThreadsWriteWholeRecords) {
  std::vector<std::string> lines;
  SystemClock clock;
  Log log(clock);
  log.add_sink(std::make_unique<ListSink>(lines));
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&log, t] {
      for (int i = 0; i < 100; ++i) {
        log.info("line", {{"thread", t}});
      }
    });
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  EXPECT_EQ(lines.size(), 400U);
}

}  // namespace
}  // namespace tidemill
