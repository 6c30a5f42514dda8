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
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(1, **{'a': 2}) }}",
       "macro 'f' got the argument 'a' twice"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(**5) }}",
       "the argument after ** must be a mapping"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(**{1: 2}) }}", "keywords must be strings"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(*[1], *[2]) }}",
       "more than one * argument in a call"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(**{}, **{}) }}",
       "more than one ** argument in a call"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(**{'a': 1}, b=2) }}",
       "keyword argument follows ** argument"},
      {"{{ f(1,) }}", "'f' is undefined"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(,) }}", "unexpected ','"},
      {"{% macro f(a, b=2) %}{% endmacro %}{{ f(1 2) }}", "expected ',', got a literal"},
      {"{{ dict(1, 2) }}", "dict expected at most 1 argument"},
      {"{{ dict([(1, 2, 3)]) }}", "dict needs a sequence of pairs"},
      {"{{ range(1, 5, 0) }}", "range() arg 3 must not be zero"},
      {"{{ range() }}", "range expected 1 to 3 arguments"},
      {"{{ range(1.5) }}", "'float' object cannot be interpreted as an integer"},
      {"{{ strftime_now(5) }}", "strftime_now: the format must be a string"},
      {"{{ 1.0 / 0.0 }}", "float division by zero"},
      {"{{ 1.0 // 0.0 }}", "float floor division by zero"},
      {"{{ 1.0 % 0.0 }}", "float modulo"},
      {"{{ 0.0 ** -1 }}", "0.0 cannot be raised to a negative power"},
      {"{{ 10.0 ** 400 }}", "a power is out of range"},
      {"{{ 0 // 0 }}", "integer division or modulo by zero"},
      {"{{ 0 % 0 }}", "integer modulo by zero"},
      {"{{ -'a' }}", "bad operand type for unary -: 'str'"},
      {"{{ +'a' }}", "bad operand type for unary +: 'str'"},
      {"{{ 1 < 'b' }}", "'<' not supported between instances of 'int' and 'str'"},
      {"{{ {[1]: 2} }}", "unhashable type: 'list'"},
      {"{{ [1].index(5) }}", "the value is not in the list"},
      {"{{ 'abc'[::0] }}", "slice step cannot be zero"},
      {"{{ 5[1:2] }}", "'int' object is not subscriptable by a slice"},
      {"{{ [1, 2][1, 2] }}", "a subscript of several values is not supported"},
      {"{{ [1, 2] | map(attribute=5.5) | list }}", "an attribute must be a name or an index"},
      {"{{ '%f'|format('a') }}", "must be real number, not str"},
      {"{{ '%d'|format('a') }}", "%d format: a number is required, not str"},
      {"{{ '%x'|format(1.5) }}", "%x format: a number is required, not float"},
      {"{{ '%c'|format('ab') }}", "%c requires a single character"},
      {"{{ '%a'|format('é') }}", "unsupported format character 'a'"},
      {"{{ '%*d'|format('a', 3) }}", "* wants int"},
      {"{{ '%(a'|format(a=1) }}", "incomplete format key"},
      {"{{ '%(a)'|format(a=1) }}", "incomplete format"},
      {"{{ '%(a)s'|format(1) }}", "no argument 'a' for the format string"},
      {"{{ '%5%|'|format() }}", "not enough arguments for format string"},
      {"{{ '%s'|format(1, 2) }}", "not all arguments converted during string formatting"},
      {"{{ '%d %s'|format(1, a=2) }}", "format takes positional or named arguments, not both"},
      {"{{ '%d' % none }}", "%d format: a number is required, not NoneType"},
      {"{{ '{:b}'.format(5) }}",
       "this format specification is not supported for a value of type int"},
      {"{{ '{:,.2f}'.format(5) }}", "Invalid format specifier"},
      {"{{ '{:.}'.format(5) }}", "Format specifier missing precision"},
      {"{{ '{:.2}'.format(5) }}", "Precision not allowed in integer format specifier"},
      {"{{ '{:#x}'.format(3.14159) }}",
       "this format specification is not supported for a value of type float"},
      {"{{ '{:+}'.format('abc') }}", "Sign not allowed in string format specifier"},
      {"{{ '{:#x}'.format('abc') }}",
       "this format specification is not supported for a value of type str"},
      {"{{ '{:=5}'.format('abc') }}", "'=' alignment not allowed in string format specifier"},
      {"{{ '{:#}'.format('abc') }}", "Alternate form (#) not allowed in string format specifier"},
      {"{{ '{:b}'.format(true) }}",
       "this format specification is not supported for a value of type bool"},
      {"{{ '{:5}'.format(none) }}", "unsupported format string for a value of type NoneType"},
      {"{{ '{:5}'.format([1, 2]) }}", "unsupported format string for a value of type list"},
      {"{{ '{'.format(1) }}", "expected '}' before end of string"},
      {"{{ '}'.format(1) }}", "Single '}' encountered in format string"},
      {"{{ '{0!a}'.format('é') }}", "Unknown conversion specifier"},
      {"{{ '{1}'.format('a') }}", "Replacement index 1 out of range for positional args tuple"},
      {"{{ '{0[0]}'.format([1, 2]) }}", "nested fields and [...] in str.format are not supported"},
      {"{{ '{}'.format() }}", "Replacement index 0 out of range for positional args tuple"},
      {"{{ 2.5|round(0, 'x') }}", "method must be common, ceil or floor"},
      {"{{ 'a'|round }}", "round: the input must be a number, not str"},
      {"{{ 'z'|int(0, 37) }}", "int: the base must be from 2 to 36"},
      {"{{ {'a': 1}|tojson(separators=(',')) }}", "tojson: separators must be two strings"},
      {"{{ {1: 'a', 'b': 2}|tojson(sort_keys=true) }}",
       "'<' not supported between keys of type str and int"},
      {"{{ {(1, 2): 'a'}|tojson }}", "keys of JSON objects cannot be of type tuple"},
      {"{{ undefinedvar|tojson }}", "Object of type Undefined is not JSON serializable"},
      {"{{ namespace()|tojson }}", "Object of type Namespace is not JSON serializable"},
      {"{{ {'k': 1}.keys()|tojson }}", "Object of type dict view is not JSON serializable"},
      {"{{ [1, 2]|map('upper')|string|length > 10 }}",
       "a generator cannot be printed; add '| list'"},
      {"{{ [1, 2]|map('upper')|length }}", "object of type 'generator' has no len()"},
      {"{{ [1, 2]|map('upper')|last }}", "'generator' object is not reversible"},
      {"{{ [1, 2]|map(5)|list }}", "no filter named '5'"},
      {"{{ [1, 2]|select(5)|list }}", "no test named '5'"},
      {"{{ [{}]|selectattr()|list }}", "Missing parameter for attribute name"},
      {"{{ [1, 2]|map()|list }}", "map needs the argument 'attribute'"},
      {"{{ {'b': 1}|dictsort(by='x') }}", "You can only sort by either \"key\" or \"value\""},
      {"{{ [1, 2]|dictsort }}", "dictsort: the input must be a mapping"},
      {"{{ {'k': 1}.nope.deep|default('z') }}", "'dict object' has no attribute 'nope'"},
      {"{{ 'abc'|trim(5) }}", "str.strip: the argument must be a str, not int"},
      {"{{ {'a/b': 1}|xmlattr }}", "Invalid character in attribute name: 'a/b'"},
      {"{{ {1: 2}|xmlattr }}", "Invalid character in attribute name: 1"},
      {"{{ 'hello world'|truncate(2) }}",
       "truncate: the length must be at least that of the end, and the leeway not negative"},
      {"{{ 'abc'|attr(5) }}", "attr: the name must be a string"},
      {"{{ none|list }}", "'NoneType' object is not iterable"},
      {"{{ 'a'|abs }}", "bad operand type for abs()"},
      {"{{ ['a']|sum }}", "unsupported operand type(s) for +: 'int' and 'str'"},
      {"{{ none|items|list }}", "Can only get item pairs from a mapping."},
      {"{{ 'a b'.split('') }}", "empty separator"},
      {"{{ 'a'.split(5) }}", "str.split: the argument must be a str, not int"},
      {"{{ 'ab'.partition(5) }}", "str.partition: the argument must be a str, not int"},
      {"{{ 'abc'.startswith(['a']) }}", "str.startswith: the argument must be a str, not list"},
      {"{{ 'abc'.startswith(5) }}", "str.startswith: the argument must be a str, not int"},
      {"{{ 'abcabc'.index('x') }}", "substring not found"},
      {"{{ 'aaa'.replace('a', 5) }}", "str.replace: the argument must be a str, not int"},
      {"{{ 'a'.ljust('3') }}", "a padding method: 'width' must be an integer, not str"},
      {"{{ 'a'.islower(1) }}", "a str test takes at most 0 arguments, got 1"},
      {"{{ 'a'.upper(1) }}", "a str method takes at most 0 arguments, got 1"},
      {"{{ {'k': 1}.get() }}", "get needs the argument 'key'"},
      {"{{ 0x }}", "expected '}}', got 'x'"},
      {"{{ 007 }}", "integer 007 has a leading zero"},
      {"{{ 1. }}", "expected a name or number, got '}}'"},
      {"{{ 1e400 }}", "number 1e400 is out of range"},
      {"{{ '\\x4' }}", "truncated escape in a string"},
      {"{{ '\\U0011FFFF' }}", "an escape in a string is not a valid character"},
      {"{{ '\\N{BULLET}' }}", "\\N escapes are not supported"},
      {"{% raw -%}  x", "missing end of raw directive"},
      {"{% raw x %}{% endraw %}", "unknown tag 'raw'"},
      {"{% %}", "expected the name of a tag"},
      {"{{ }}", "expected an expression, got '}}'"},
      {"{% set %}", "expected a name, got '%}'"},
      {"{% set 5 = 1 %}", "expected a name, got a literal"},
      {"{% set none = 1 %}", "can't assign to 'none'"},
      {"{% set None = 1 %}", "can't assign to 'None'"},
      {"{% for a in [1, 2] %}{{ loop.cycle() }}{% endfor %}", "no items for cycling given"},
      {"{% for a in [1] %}{{ loop([2]) }}{% endfor %}",
       "The loop must have the 'recursive' marker to be called recursively."},
      {"{% for a in [1] recursive %}{{ loop() }}{% endfor %}",
       "loop needs the argument 'iterable'"},
      {"{% for a in [1] %}{{ loop }}{% endfor %}", "a LoopContext cannot be printed"},
      {"{{ (1 if e).x }}", "the inline if-expression evaluated to false and no else was given"},
      {"{{ 5 is odd is true }}", "tests with 'is' cannot be chained"},
      {"{{ 5 is in(5, 6) }}", "in takes at most 1 arguments, got 2"},
      {"{{ 5 is == 5 }}", "expected the name of a test, got '=='"},
      {"{{ 5 is 5 }}", "expected the name of a test, got a literal"},
      {"{{ 5 | 5 }}", "expected the name of a filter, got a literal"},
      {"{{ 5 | }}", "expected the name of a filter, got '}}'"},
      {"{{ 'a' is lower 'b' }}", "this test takes at most 0 arguments, got 1"},
      {"{{ [1, 2][ }}", "unexpected '}', expected ']'"},
      {"{{ x.'a' }}", "expected a name or number, got a literal"},
      {"{{ 5.x.y }}", "'int object' has no attribute 'x'"},
      {"{{ a! }}", "unexpected character '!'"},
      {"{% call 5 %}q{% endcall %}", "expected a call"},
      {"{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}", "parameter 'a' was not provided"},
      {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}",
       "macro 'm' takes no keyword argument 'b'"},
      {"{{ messages() }}", "'list' object is not callable"},
      {"{{ raise_exception() }}", "raise_exception needs the argument 'message'"},
      {"{{ raise_exception('a', 'b') }}", "raise_exception takes at most 1 arguments, got 2"},
      {"{{ [5].0.1.x }}", "'int object' has no element 1"},
      {"{{ (-8) ** 0.5 }}", "a power has a complex result"},
      {"{{ -8.0 ** 0.5 }}", "a power has a complex result"},
      {"{{ 99.0 | round(-1) | int }}{{ -(-9223372036854775807 - 1) }}",
       "an integer result does not fit in 64 bits"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "an integer result does not fit in 64 bits"},
      {"{{ 3 ** 40 }}", "an integer result does not fit in 64 bits"},
      {"{{ '9223372036854775808' | int }}", "an integer result does not fit in 64 bits"},
      {"{{ '%5d' | format('a') }}", "%d format: a number is required, not str"},
      {"{{ '{:.301f}'.format(1.0) }}", "a format precision is too large"},
      {"{{ '%.301f' % 1.5 }}", "a format precision is too large"},
      {"{{ 'x' ? }}", "unexpected character '?'"},
      {"{{ 1 if }}", "unexpected '}}'"},
      {"{% set (((a = 1 %}", "unexpected '}', expected ')'"},
      {"{% for x in %}{% endfor %}", "expected an expression, got '%}'"},
      {"{% if 1 %}{% elif %}{% endif %}", "expected an expression, got '%}'"},
      {"{{ f(**{}, *[1]) }}", "* argument follows ** argument"},
      {"{{ 5 not 3 }}", "expected '}}', got 'not'"},
      {"{% macro m(a=1 %}{% endmacro %}", "unexpected '}', expected ')'"},
      {"{% for i [1] %}{% endfor %}", "expected 'in', got '['"},
      {"{{ 'a'.split(sep='a', sep='b') }}", "split got the argument 'sep' twice"},
      {"{{ 'a'.split('a', sep='b') }}", "split got the argument 'sep' twice"},
      {"{{ 'a'.endswith(5) }}", "str.endswith: the argument must be a str, not int"},
      {"{{ 'a'.rfind(5) }}", "str.rfind: the argument must be a str, not int"},
      {"{{ 'a'.rindex('x') }}", "substring not found"},
      {"{{ 'a'.removeprefix(5) }}", "str.removeprefix: the argument must be a str, not int"},
      {"{{ 'a'.removesuffix(5) }}", "str.removesuffix: the argument must be a str, not int"},
      {"{{ 'a' | center('x') }}", "center: 'width' must be an integer, not str"},
      {"{{ [1] | slice('x') }}", "slice: 'slices' must be an integer, not str"},
      {"{{ 5 is divisibleby(0) }}", "integer modulo by zero"},
      {"{{ [3] | join(1, 2, 3) }}", "join takes at most 2 arguments, got 3"},
      {"{% for a in [1] %}{{ loop.cycle }}{% endfor %}", "a function cannot be printed"},
      {"{% for a, b in [(1, 2, 3)] %}{% endfor %}", "too many values to unpack (expected 2)"},
      {"{% set a, b = 5 %}", "'int' object is not iterable"},
      {"{{ [1] + 'a' }}", "can only concatenate list (not \"str\") to list"},
      {"{{ 1 + none }}", "unsupported operand type(s) for +: 'int' and 'NoneType'"},
      {"{{ {} ** 2 }}", "unsupported operand type(s) for ** or pow(): 'dict' and 'int'"},
      {"{{ 'a' // 2 }}", "unsupported operand type(s) for //: 'str' and 'int'"},
      {"{{ none % 2 }}", "unsupported operand type(s) for %: 'NoneType' and 'int'"},
      {"{{ 5 in 5 }}", "argument of type 'int' is not iterable"},
      {"{{ 5 in 'a' }}", "'in <string>' requires string as left operand, not int"},
      {"{{ none < 1 }}", "'<' not supported between instances of 'NoneType' and 'int'"},
      {"{{ messages.x.y }}", "'list object' has no attribute 'x'"},
      {"{{ messages[5].y }}", "'list object' has no element 5"},
      {"{{ messages[0].q.y }}", "'dict object' has no attribute 'q'"},
      {"{{ 'abc'[7].x }}", "'str object' has no element 7"},
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
      {R"({"messages": [{}], "continue_final_message": "yes"})",
       "continue_final_message: must be true or false"},
      {R"({"messages": [{"content": []}], "continue_final_message": true})",
       "continue_final_message: the last message has no text to continue"},
      {R"({"messages": [{"content": [{"type": "image"}, 1]}], "continue_final_message": true})",
       "continue_final_message: the last message has no text to continue"},
      {R"({"messages": [{"content": 5}], "continue_final_message": true})",
       "continue_final_message: the last message has no text to continue"},
      {R"({"messages": [{}], "continue_final_message": true})",
       "continue_final_message: the last message has no text to continue"},
      {R"({"messages": [{"content": "x"}], "continue_final_message": true})",
       "continue_final_message: the template does not render the whole last message"},
      {R"({"messages": [{"content": "x"}], "now": "yesterday"})",
       "line 1: strftime_now: 'yesterday' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-13-01T00:00:00"})",
       "line 1: strftime_now: '2024-13-01T00:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-00-01T00:00:00"})",
       "line 1: strftime_now: '2024-00-01T00:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-04-31T00:00:00"})",
       "line 1: strftime_now: '2024-04-31T00:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-01-00T00:00:00"})",
       "line 1: strftime_now: '2024-01-00T00:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2100-02-29T00:00:00"})",
       "line 1: strftime_now: '2100-02-29T00:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "0000-01-01T00:00:00"})",
       "line 1: strftime_now: '0000-01-01T00:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-01-01T24:00:00"})",
       "line 1: strftime_now: '2024-01-01T24:00:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-01-01T00:60:00"})",
       "line 1: strftime_now: '2024-01-01T00:60:00' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-01-01T00:00:60"})",
       "line 1: strftime_now: '2024-01-01T00:00:60' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-01-01"})",
       "line 1: strftime_now: '2024-01-01' is not a time like 2026-01-31T12:00:00"},
      {R"({"messages": [{"content": "x"}], "now": "2024-01-01T00:00"})",
       "line 1: strftime_now: '2024-01-01T00:00' is not a time like 2026-01-31T12:00:00"},
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
