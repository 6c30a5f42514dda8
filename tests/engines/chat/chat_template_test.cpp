// SPDX-License-Identifier: Apache-2.0
// Templates that fail or never end, invalid requests, and the steps before and after rendering.
#include "engines/chat/chat_template.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/chat/budget.hpp"
#include "engines/chat/conversation.hpp"
#include "engines/chat/generation_mask.hpp"

namespace tidemill::engines::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kOneMessage = R"({"messages": [{"role": "user", "content": "hi"}]})";

Result<Rendering> render(std::string_view source, std::string_view request = kOneMessage) {
  TIDEMILL_ASSIGN_OR_RETURN(const ChatTemplate parsed, ChatTemplate::parse(source));
  TIDEMILL_ASSIGN_OR_RETURN(const ChatRequest chat, ChatRequest::from_json(request));
  return parsed.render(chat);
}

std::string text_of(std::string_view source, std::string_view request = kOneMessage) {
  const auto result = render(source, request);
  EXPECT_TRUE(result.ok()) << source << ": " << result.status().to_string();
  return result.ok() ? result.value().text : std::string();
}

std::string failure_of(std::string_view source, std::string_view request = kOneMessage) {
  const auto result = render(source, request);
  EXPECT_FALSE(result.ok()) << source << " gave " << result.value().text;
  return result.status().message();
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const std::vector<std::pair<const char*, const char*>> templates = {
      // Templates that cannot be parsed.
      {"a\n{{ x", "line 2: unexpected end of template, expected '}}'"},
      {"{% if x\n", "line 1: unexpected end of template, expected '%}'"},
      {"\n{# never closed", "line 2: missing end of comment tag"},
      {"\n\n{% raw %}\n{{", "line 3: missing end of raw directive"},
      {"{% if x %}\na", "line 2: unexpected end of template, expected {% endif %}"},
      {"{% for m in messages %}", "line 1: unexpected end of template, expected {% endfor %}"},
      {"a\n{% endfor %}", "line 2: unknown tag 'endfor'"},
      {"{% include 'x' %}", "line 1: unknown tag 'include'"},
      {"{{ x | nosuch }}", "line 1: no filter named 'nosuch'"},
      {"\n{{ x is nosuch }}", "line 2: no test named 'nosuch'"},
      {"{{ 'abc }}", "line 1: unterminated string"},
      {"{{ (1, 2] }}", "line 1: unexpected ']', expected ')'"},
      {"{{ 1 +\n }}", "line 2: unexpected '}}'"},
      {"{{ a b }}", "line 1: expected '}}', got 'b'"},
      {"{{ a ? b }}", "line 1: unexpected character '?'"},
      {"{{ 99999999999999999999 }}",
       "line 1: integer 99999999999999999999 does not fit in 64 bits"},
      {"{% set true = 1 %}", "line 1: can't assign to 'true'"},
      {"{% break %}", "line 1: 'break' outside a loop"},
      {"{% for i in x %}{% generation %}{% continue %}{% endgeneration %}{% endfor %}",
       "line 1: 'continue' outside a loop"},
      {"{% macro m(a=1, b) %}{% endmacro %}",
       "line 1: a parameter without a default follows one with a default"},
      {"{{ f(a=1, 2) }}", "line 1: positional argument follows keyword argument"},
      {"a\xFF", "line 1: not valid UTF-8"},
      // Templates that fail during rendering.
      {"\n{{ raise_exception('no system role') }}", "line 2: no system role"},
      {"{{ nothing.at.all }}", "line 1: 'nothing' is undefined"},
      {"\n{{ messages[0].name.first }}", "line 2: 'dict object' has no attribute 'name'"},
      {"{% for m in messages %}\n{{ 'x' + loop.index }}\n{% endfor %}",
       "line 2: can only concatenate str (not \"int\") to str"},
      {"{{ messages.append(1) }}", "line 1: 'list object' has no attribute 'append'"},
      {"{{ 1 / 0 }}", "line 1: division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "line 1: an integer result does not fit in 64 bits"},
      {"{{ messages | tojson(indent='a', separators=1) }}", "line 1: 'int' object is not iterable"},
      {"{% for a, b in [[1]] %}{% endfor %}",
       "line 1: not enough values to unpack (expected 2, got 1)"},
      {"{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}",
       "line 2: macro 'm' takes not more than 1 argument(s)"},
      {"{{ strftime_now('%d') }}", "line 1: strftime_now: the request has no time (now)"},
      {"{% set ns = namespace() %}{% set ns.__x = 1 %}",
       "line 1: namespace attributes must be names that do not begin with _"},
      {"{% set messages.x = 1 %}", "line 1: cannot assign attribute on non-namespace object"},
      {"{% set ns = namespace() %}{% set ns.self = ns %}",
       "line 1: a namespace cannot hold namespaces, macros or loops"},
      {"\n{{ [1, 2] | random }}",
       "line 2: the filter 'random' is not supported, because rendering must be deterministic"},
      {"{{ [[1]] | map('random') | list }}",
       "line 1: the filter 'random' is not supported, because rendering must be deterministic"},
      {"{% autoescape true %}", "line 1: unknown tag 'autoescape'"},
      {"{% if 'nosuch' is filter %}{{ x | nosuch }}{% endif %}",
       "line 1: no filter named 'nosuch'"},
      {"{{ 'abc' | truncate(9) | upper(1) }}",
       "line 1: a text filter takes at most 0 arguments, got 1"},
      {"{{ 'a' | truncate(2.5) }}", "line 1: truncate: 'length' must be an integer, not float"},
      {"{{ 'a' | batch(2, size=3) }}", "line 1: batch has no argument 'size'"},
      {"{{ 'a' | wordwrap(0) }}", "line 1: wordwrap: the width must be positive"},
      {"{{ {'a b': 1} | xmlattr }}", "line 1: Invalid character in attribute name: 'a b'"},
      {"{{ 'a' | urlize(extra_schemes=['tel']) }}",
       "line 1: urlize: 'tel' is not a valid URI scheme prefix."},
      {"{{ 'a'.encode('utf-8') }}", "line 1: str.encode is not supported"},
      {"\n{{ 'a' | upper }}{{ 'a'.translate({}) }}", "line 2: str.translate is not supported"},
      {"{{ 'a'.maketrans('a', 'b') }}", "line 1: str.maketrans is not supported"},
      {"{{ 'a'.isidentifier() }}", "line 1: str.isidentifier is not supported"},
      {"{{ '{a}'.format_map([1]) }}", "line 1: format_map: the argument must be a dict, not list"},
      {"{{ 'a'.expandtabs(4294967296) }}",
       "line 1: expandtabs: the tab size does not fit in 32 bits"},
      {"{{ 'x' | filesizeformat }}", "line 1: could not convert string to float"},
      {"{{ ('<' | e).center(5, '<') }}",
       "line 1: the fill character must be exactly one character long"},
  };
  for (const auto& [source, message] : templates) {
    EXPECT_EQ(failure_of(source), message) << source;
  }
}

// Each template begins on the second line.
TEST(ChatTemplate, ErrorsSayWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> templates = {
      {"{{ f(**{}, *[1]) }}", "* argument follows ** argument"},
      {"{{ 'a'.removesuffix(5) }}", "str.removesuffix: the argument must be a str, not int"},
  };
  for (const auto& [source, message] : templates) {
    EXPECT_EQ(failure_of("\n" + std::string(source)), "line 2: " + std::string(message)) << source;
  }
}

// Without limits, each of these templates would exhaust time, memory or the stack.
TEST(ChatTemplate, HostileTemplatesHitALimit) {
  const auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const std::vector<std::pair<std::string, const char*>> templates = {
      {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
       "line 1: more than 2000000 steps"},
      {"{{ range(1000000) }}", "line 1: a range of more than 100000 items"},
      {"\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
       "line 2: evaluation nested deeper than 500"},
      {"{{ 'a' * 1000000000 }}", "line 1: repeating a value 1000000000 times"},
      {"{{ [0] * 1000000000 }}", "line 1: repeating a value 1000000000 times"},
      {"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}"
       "{% set ns.s = ns.s + ns.s %}{% endfor %}",
       "line 1: more than 268435456 bytes of values"},
      {"{% set ns = namespace(l=[1, 2, 3, 4]) %}{% for i in range(64) %}"
       "{% set ns.l = ns.l + ns.l %}{% endfor %}",
       "line 1: more than 268435456 bytes of values"},
      {"{% set s = 'a' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
       "line 1: more than 33554432 bytes of output"},
      {"{% set s = 'a' * 1000000 %}{{ s | replace('a', s) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{% set s = 'a' * 1000000 %}{{ ([s] * 1000) | join }}",
       "line 1: more than 268435456 bytes of values"},
      {"{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set n = s | length %}{% endfor "
       "%}",
       "line 1: more than 1073741824 bytes of work"},
      {"{{ '%999999999d' | format(1) }}", "line 1: a format width is too large"},
      {"{{ ('a\t' * 1000).expandtabs(2147483647) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{{ 'a'.center(9999999999) }}", "line 1: more than 268435456 bytes of values"},
      {"{% set ns = namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = [ns.l] %}{% endfor %}",
       "line 1: values nested deeper than 200"},
      {"{{ ('\"' * 100000000) | e }}", "line 1: more than 268435456 bytes of values"},
      {"{% set s = ('<%s>' * 1000000) | safe %}{{ s % (('a' * 1000,) * 1000000) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{{ [1] | batch(1000000000, 0) | list }}", "line 1: repeating a value 999999999 times"},
      {"{{ [1] | slice(1000000000) | list }}", "line 1: more than 2000000 steps"},
      {"{{ 'a' | indent(9999999999, true) }}", "line 1: more than 268435456 bytes of values"},
      {"{{ ('\\n' * 1000000) | indent('a' * 1000, blank=true) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{{ [[1]] | tojson(indent=9999999999) }}", "line 1: more than 268435456 bytes of values"},
      {"{{ ('a ' * 100000) | wordwrap(1, wrapstring='a' * 10000) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{{ ('www.a.com ' * 10000) | urlize(rel='a' * 100000) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{{ ('a:b ' * 100000) | urlize(extra_schemes=['tel:'] * 100000) }}",
       "line 1: more than 1073741824 bytes of work"},
      {"{{ {'a' * 1000000: 'b'} | xmlattr | urlencode | center(999999999) }}",
       "line 1: more than 268435456 bytes of values"},
      {"{% set ns = namespace(l='a') %}{% for i in range(190) %}{% set ns.l = [ns.l, ns.l] %}"
       "{% endfor %}{{ ns.l | pprint }}",
       "line 1: more than 2000000 steps"},
      {"{% set ns = namespace(l=range(10000)) %}{% for i in range(190) %}{% set ns.l = [ns.l] %}"
       "{% endfor %}{{ ns.l | pprint }}",
       "line 1: more than 268435456 bytes of values"},
      {"{{ 2 ** 63 }}", "line 1: an integer result does not fit in 64 bits"},
      {"{{ " + repeated("(", 100) + "1" + repeated(")", 100) + " }}",
       "line 1: expressions nested deeper than 60"},
      {"{{ " + repeated("[", 100000), "line 1: unexpected end of template, expected '}}'"},
      {"{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}",
       "line 1: expressions nested deeper than 60"},
      {"{{ 1" + repeated(" + 1", 100000) + " }}", "line 1: expression tree deeper than 200 levels"},
      {"{{ x" + repeated(".x", 100000) + " }}", "line 1: expression tree deeper than 200 levels"},
      {"{{ x" + repeated(" | trim", 100000) + " }}",
       "line 1: expression tree deeper than 200 levels"},
      {"{{ " + repeated("not ", 100000) + "1 }}", "line 1: 'not' nested too deeply"},
      {"{{ " + repeated("-", 3) + repeated(" -", 100000) + "1 }}",
       "line 1: signs nested too deeply"},
      {repeated("{% if 1 %}", 10000), "line 1: tags nested deeper than 100"},
      {std::string(ChatTemplate::kMaxBytes + 1, 'a'),
       "line 1: the template is larger than 1048576 bytes"},
  };
  for (const auto& [source, message] : templates) {
    EXPECT_EQ(failure_of(source), message) << source.substr(0, 100);
  }
}

TEST(ChatTemplate, RequestsAreChecked) {
  const std::vector<std::pair<const char*, const char*>> requests = {
      {"[]", "the request must be a JSON object"},
      {"{", "not JSON at byte 2"},
      {R"({"a": 1, "a": 2})", "the name \"a\" occurs twice in one object"},
      {R"({"messages": [], "x": 18446744073709551616})",
       "integer 18446744073709551616 does not fit in 64 bits"},
      {R"({"messages": [], "x": 9223372036854775808})",
       "integer 9223372036854775808 does not fit in 64 bits"},
      {R"({})", "messages: must be a non-empty list of messages"},
      {R"({"messages": []})", "messages: must be a non-empty list of messages"},
      {R"({"messages": "hi"})", "messages: must be a non-empty list of messages"},
      {R"({"messages": [{}, 1]})", "messages[1]: must be an object"},
      {R"({"messages": [{}], "now": 5})", "now: must be a string"},
      {R"({"messages": [{}], "add_generation_prompt": 1})",
       "add_generation_prompt: must be true or false"},
      {R"({"messages": [{}], "add_generation_prompt": true, "continue_final_message": true})",
       "continue_final_message: cannot be combined with add_generation_prompt"},
      {R"({"messages": [{}], "continue_final_message": true})",
       "continue_final_message: the last message has no text to continue"},
      {R"({"messages": [{"content": "x"}], "continue_final_message": true})",
       "continue_final_message: the template does not render the whole last message"},
      {R"({"messages": [{"content": "x"}], "now": "yesterday"})",
       "line 1: strftime_now: 'yesterday' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2023-02-29T00:00:00"})",
       "line 1: strftime_now: '2023-02-29T00:00:00' is not a time like 2026-01-31T12:00:00"},
  };
  for (const auto& [request, message] : requests) {
    EXPECT_EQ(
        failure_of("{% if now_wanted is not defined and messages[0].content == 'x' and not "
                   "messages[0].content.endswith('TAG ') %}{{ strftime_now('%d') }}{% endif %}",
                   request),
        message)
        << request;
  }
  const std::string deep = R"({"messages": )" + std::string(100000, '[');
  EXPECT_EQ(failure_of("", deep), "JSON nested deeper than 64");
}

TEST(ChatTemplate, MessagesAreCleaned) {
  constexpr const char* kRequest = R"({"messages": [
      {"role": "a", "content": null, "reasoning": "r"}, {"thinking": "t", "reasoning_content": null}]})";
  EXPECT_EQ(text_of("{% for m in messages %}{{ m | tojson }}{% endfor %}", kRequest),
            R"({"thinking": "r", "role": "a", "reasoning": "r", "reasoning_content": "r"})"
            R"({"thinking": "t", "reasoning_content": "t"})");
}

// Only the members of a message itself are removed if they are null.
TEST(ChatTemplate, NullInsideMembersRemains) {
  constexpr const char* kRequest = R"({"tools": [{"default": null}], "documents": [{"text": null}],
      "messages": [{"role": "assistant", "content": [{"text": null}], "tool_calls": [
        {"id": null, "function": {"name": "f", "arguments": {"city": null, "days": [null]}}}]}]})";
  EXPECT_EQ(
      text_of("{{ messages[0] | tojson }}", kRequest),
      R"({"role": "assistant", "content": [{"text": null}], "tool_calls": [)"
      R"({"id": null, "function": {"name": "f", "arguments": {"city": null, "days": [null]}}}]})");
  EXPECT_EQ(text_of("{% set call = messages[0].tool_calls[0] %}{{ call.id is none }} "
                    "{{ call.function.arguments.city is none }} {{ tools | tojson }} "
                    "{{ documents | tojson }}",
                    kRequest),
            R"(True True [{"default": null}] [{"text": null}])");
}

TEST(ChatTemplate, LaterVariablesWin) {
  ChatRequest request = ChatRequest::from_json(kOneMessage).value();
  request.variables = {{"eos_token", Value("</s>")}, {"eos_token", Value("<end>")}};
  const auto parsed = ChatTemplate::parse("{{ eos_token }}{{ bos_token }}{{ tools }}");
  EXPECT_EQ(parsed.value().render(request).value().text, "<end>None");
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const auto continued = [](const char* source, const char* content) {
    return text_of(source,
                   std::string(R"({"continue_final_message": true, "messages": [{"content": )") +
                       content + "}]}");
  };
  EXPECT_EQ(continued("<{{ messages[0].content }}>", R"("so  ")"), "<so  ");
  EXPECT_EQ(continued("<{{ messages[0].content | trim }}>", R"("so  ")"), "<so");
  EXPECT_EQ(continued("{{ messages[0].content[1].text }}!",
                      R"([{"text": "a"}, {"text": "b"}, {"image": 1}])"),
            "b");
}

TEST(ChatTemplate, GenerationSpansCountCodePoints) {
  const auto result = render(
      "\u6C34{% generation %}\u00E9\u00E9{% endgeneration %}"
      "{% for i in [1, 2] %}-{% generation %}{{ i }}{% endgeneration %}{% endfor %}");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().text, "\u6C34\u00E9\u00E9-1-2");
  EXPECT_THAT(result.value().generation_spans,
              ElementsAre(CodePointSpan{1, 3}, CodePointSpan{4, 5}, CodePointSpan{6, 7}));
}

// The search for the tag and the rendering recognize the same spellings.
TEST(ChatTemplate, EverySpellingOfTheGenerationTagsIsRecognized) {
  for (const std::string begin : {"{%", "{%-", "{%+"}) {
    for (const std::string end : {"%}", "-%}", "+%}"}) {
      for (const std::string blanks : {"", " ", "\t \r\n"}) {
        const auto tag = [&](const std::string& name) {
          return begin + blanks + name + blanks + end;
        };
        const std::string source = "a " + tag("generation") + " b " + tag("endgeneration") + " c";
        SCOPED_TRACE(source);
        EXPECT_TRUE(has_generation_tag(source));
        EXPECT_FALSE(has_generation_tag(tag("endgeneration")));
        const auto result = render(source);
        ASSERT_TRUE(result.ok()) << result.status().to_string();
        // A minus removes the blanks next to the tag.
        const std::string before = begin == "{%-" ? "" : " ";
        const std::string after = end == "-%}" ? "" : " ";
        EXPECT_EQ(result.value().text, "a" + before + after + "b" + before + after + "c");
        const std::size_t first = 1 + before.size();
        EXPECT_THAT(result.value().generation_spans,
                    ElementsAre(CodePointSpan{first, first + after.size() + 1 + before.size()}));
      }
    }
  }
}

TEST(ChatTemplate, OtherTagsAreNotGenerationTags) {
  for (const char* source :
       {"", "generation", "{{ generation }}", "{# generation #}", "{ % generation %}",
        "{% generation", "{% generation }}", "{% generations %}", "{% generation x %}",
        "{% endgeneration %}", "{% set generation = 1 %}", "{% if generation %}{% endif %}",
        "{% - generation %}", "{%-+ generation %}", "{% generation - %}", "{% generation -+%}"}) {
    EXPECT_FALSE(has_generation_tag(source)) << source;
  }
  EXPECT_TRUE(has_generation_tag("{% generations %}{% generation }}{%{%- generation +%}"));
}

TEST(GenerationMask, MarksEveryTokenThatOverlaps) {
  // Each token of half a two-byte character covers the whole character.
  const Encoding encoding = {{1, 2, 3, 4, 5}, {{0, 0}, {0, 1}, {1, 3}, {1, 3}, {3, 5}}};
  const std::vector<CodePointSpan> spans = {{1, 2}};
  EXPECT_THAT(generation_mask("a\u00E9bc", spans, encoding), ElementsAre(0, 0, 1, 1, 0));
  EXPECT_THAT(generation_mask("a\u00E9bc", {}, encoding), ElementsAre(0, 0, 0, 0, 0));
}

TEST(ChatTemplate, StrftimeReadsTheGivenClock) {
  constexpr const char* kRequest = R"({"messages": [{}], "now": "2028-12-31 23:05:09.5"})";
  EXPECT_EQ(text_of("{{ strftime_now('%A %d %B %Y, %j %H:%M:%S %f%z%Z %-d %e %%') }}", kRequest),
            "Sunday 31 December 2028, 366 23:05:09 000000 31 31 %");
  EXPECT_EQ(failure_of("{{ strftime_now('%Q') }}", kRequest),
            "line 1: strftime_now: the directive %Q is not supported");
}

TEST(Value, ReadsJsonInOrder) {
  const auto value = Value::parse_json(R"({"z": 1, "a": [9007199254740993, -0.0, 1e-7, 1E22]})");
  ASSERT_TRUE(value.ok());
  ChatRequest request = ChatRequest::from_json(kOneMessage).value();
  request.variables = {{"v", value.value()}};
  EXPECT_EQ(ChatTemplate::parse("{{ v | tojson }}").value().render(request).value().text,
            R"({"z": 1, "a": [9007199254740993, -0.0, 1e-07, 1e+22]})");
}

TEST(Value, EqualKeysAreOneKey) {
  Dict dict;
  EXPECT_TRUE(dict.insert(Value(1), Value("int")));
  EXPECT_TRUE(dict.insert(Value(1.0), Value("float")));
  EXPECT_TRUE(dict.insert(Value(true), Value("bool")));
  EXPECT_TRUE(dict.insert(Value("1"), Value("str")));
  EXPECT_FALSE(dict.insert(Value::sequence({}), Value(0)));
  ASSERT_EQ(dict.size(), 2U);
  EXPECT_EQ(dict.find(Value(1))->as_string(), "bool");
  EXPECT_FALSE(equal(Value(std::int64_t{9007199254740993}), Value(9007199254740992.0)));
}

// A token that only begins or only ends in a generated span counts as generated. Spans are counted
// in code points, and tokens in bytes.
TEST(GenerationMask, CoversEveryTokenThatTouchesASpan) {
  const std::string text = "a\u00E9\u6C34bc";  // 1, 2, 3, 1 and 1 bytes
  Encoding encoding;
  encoding.spans = {{0, 1}, {0, 3}, {1, 3}, {3, 6}, {3, 7}, {6, 7}, {7, 8}, {8, 8}};
  encoding.ids.assign(encoding.spans.size(), 0);
  using Mask = std::vector<std::uint8_t>;
  const auto mask = [&](const std::vector<CodePointSpan>& spans) {
    return generation_mask(text, spans, encoding);
  };
  EXPECT_EQ(mask({}), Mask(8, 0));
  EXPECT_EQ(mask({{1, 3}}), (Mask{0, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(mask({{3, 4}}), (Mask{0, 0, 0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(mask({{0, 1}, {4, 5}}), (Mask{1, 1, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(mask({{0, 5}}), (Mask{1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(mask({{2, 2}}), Mask(8, 0)) << "an empty span";
}

}  // namespace
}  // namespace tidemill::engines::chat
