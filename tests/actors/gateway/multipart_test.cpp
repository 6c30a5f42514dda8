// SPDX-License-Identifier: Apache-2.0
// Tests forms: what is read, and what is refused with which message.
#include "actors/gateway/openai/multipart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using actors::openai::form_boundary;
using actors::openai::FormPart;
using actors::openai::parse_form;
using ::testing::EndsWith;

std::string part(const std::string& disposition, const std::string& content) {
  return "--X\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + content + "\r\n";
}

TEST(MultipartTest, ReadsTheBoundary) {
  struct Row {
    const char* type;
    const char* boundary;
  };
  for (const Row& row : {Row{"multipart/form-data; boundary=abc", "abc"},
                         Row{"Multipart/Form-Data;boundary=\"a b:c\"", "a b:c"},
                         Row{"multipart/form-data; charset=utf-8; BOUNDARY=---0 ", "---0"}}) {
    const auto boundary = form_boundary(row.type);
    ASSERT_TRUE(boundary.ok()) << row.type << ": " << boundary.status().to_string();
    EXPECT_EQ(boundary.value(), row.boundary);
  }
  const std::string longest(70, 'x');
  EXPECT_TRUE(form_boundary("multipart/form-data; boundary=" + longest).ok());
  for (const std::string& type : std::vector<std::string>{
           "application/json", "multipart/form-data", "multipart/form-data; boundary=",
           "multipart/form-data; boundary=\"a", "multipart/form-data; boundary=\"a \"",
           "multipart/form-data; boundary=a; boundary=b", "multipart/form-data boundary=a",
           "multipart/form-data; boundary=\"\"", "multipart/form-data; boundary=\"a;b\"",
           "multipart/form-data; boundary=" + longest + "x"}) {
    const auto boundary = form_boundary(type);
    EXPECT_EQ(boundary.status().code(), Errc::kInvalidArgument) << type;
  }
}

TEST(MultipartTest, ReadsParts) {
  const std::string content = "line\r\nline\r\n--Y\n--X\r\n\r";
  const std::string body = part(R"(name="purpose")", "fine-tune") +
                           part(R"(name="file"; filename="a \"b\" c:\dir.jsonl")", content) +
                           part("name=empty", "") + "--X--\r\n";
  const auto parts = parse_form(body, "X");
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  ASSERT_EQ(parts.value().size(), 3U);
  const std::vector<FormPart>& read = parts.value();
  EXPECT_EQ(read[0].name, "purpose");
  EXPECT_FALSE(read[0].filename.has_value());
  EXPECT_EQ(read[0].content, "fine-tune");
  EXPECT_EQ(read[1].filename, R"(a "b" c:\dir.jsonl)");
  EXPECT_EQ(read[1].content, content);
  EXPECT_EQ(read[2].name, "empty");
  EXPECT_EQ(read[2].content, "");
}

TEST(MultipartTest, ReadsWhatClientsSend) {
  // Line breaks before the first boundary, spaces after a boundary, other headers, no last line
  // end.
  const std::string body =
      "\r\n--X \t\r\nContent-Type: application/octet-stream\r\nContent-Length: 2\r\n"
      "content-disposition:form-data; name=\"file\"; filename*=UTF-8''r%C3%A4te.jsonl; "
      "filename=\"rate.jsonl\"\r\nContent-Transfer-Encoding: binary\r\n\r\nab\r\n--X--";
  const auto parts = parse_form(body, "X");
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  EXPECT_EQ(parts.value()[0].filename, "räte.jsonl");
  EXPECT_EQ(parts.value()[0].content, "ab");
  EXPECT_TRUE(parse_form("--X--", "X").value().empty());
  // A part without the line end before the next boundary.
  EXPECT_EQ(parse_form("--X\r\nContent-Disposition: form-data; name=a\r\n\r\n--X--", "X")
                .value()[0]
                .content,
            "");
}

TEST(MultipartTest, RefusesOtherBodies) {
  const std::string good = part("name=a", "x");
  struct Row {
    std::string body;
    const char* end;  // of the message
  };
  const std::string disposition = "Content-Disposition: form-data; name=a";
  for (const Row& row : {
           Row{"", "data: it must begin with the boundary"},
           Row{"preamble\r\n" + good + "--X--", "data: it must begin with the boundary"},
           Row{"--Xy\r\n", "data: a line begins with the boundary but has more text"},
           Row{"--X", "data: a line begins with the boundary but has more text"},
           Row{good, "part 1: no boundary follows"},
           Row{good + "--X", "part 1: a line begins with the boundary but has more text"},
           Row{good + "--X--\r\nmore", "part 1: text follows the last boundary"},
           Row{"--X\r\n" + disposition + "\r\n\r\na\r\n--Xb\r\n--X--",
               "part 1: a line begins with the boundary but has more text"},
           Row{"--X\r\n" + disposition, "part 1: the headers do not end"},
           Row{"--X\r\n\r\nx\r\n--X--", "part 1: has no Content-Disposition"},
           Row{good + "--X\r\n" + disposition + "\r\n" + disposition + "\r\n\r\nx\r\n--X--",
               "part 2: Content-Disposition occurs twice"},
           Row{"--X\r\nno colon\r\n\r\nx\r\n--X--", "a header must have the form Name: value"},
           Row{"--X\r\n folded: x\r\n\r\nx\r\n--X--", "a header must have the form Name: value"},
           Row{"--X\r\nA: \x01\r\n\r\nx\r\n--X--", "a header must have the form Name: value"},
           Row{"--X\r\nContent-Disposition: attachment; name=a\r\n\r\nx\r\n--X--",
               "the Content-Disposition must be form-data"},
           Row{part("x=a", "x") + "--X--", "the Content-Disposition needs a name"},
           Row{part("name=\"\"", "x") + "--X--", "the Content-Disposition needs a name"},
           Row{part("name=\"a", "x") + "--X--", "the quotes of \"name\" do not end"},
           Row{part("name=a; name=b", "x") + "--X--", "the parameter \"name\" occurs twice"},
           Row{part("name=\"\xFF\"", "x") + "--X--", "the names must be UTF-8"},
           Row{part("name=a; filename*=latin1''x", "x") + "--X--",
               "filename* must have the form UTF-8''NAME"},
           Row{"--X\r\n" + disposition + "\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n--X--",
               "the Content-Transfer-Encoding \"base64\" is not supported"},
           Row{"--X\r\nA: " + std::string(5000, 'a') + "\r\n\r\nx\r\n--X--",
               "part 1: the headers are too long"},
       }) {
    const auto parts = parse_form(row.body, "X");
    ASSERT_FALSE(parts.ok()) << row.end;
    EXPECT_EQ(parts.status().code(), Errc::kInvalidArgument);
    EXPECT_THAT(parts.status().message(), EndsWith(row.end));
  }
  std::string many;
  for (int i = 0; i < 17; ++i) {
    many += good;
  }
  EXPECT_THAT(parse_form(many + "--X--", "X").status().message(),
              EndsWith("it has more than 16 parts"));
}

}  // namespace
}  // namespace tidemill::test
