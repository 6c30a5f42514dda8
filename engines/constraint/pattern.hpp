// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. Regular expressions for strings.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "engines/constraint/json_rules.hpp"

namespace tidemill::engines {

/// Returns a fragment that matches the content of the strings in which `pattern` matches somewhere,
/// as JSON Schema's `pattern`.
///
/// Patterns have characters, `.`, classes with ranges and `^`, the escapes \d \w \s \D \W \S, \t \n
/// \r \f \v, \xHH, \uHHHH and escaped punctuation, groups, `|`, and the quantifiers * + ? {m} {m,}
/// {m,n}, which may be lazy. The anchors ^ and $ are allowed at the ends of the whole pattern's
/// alternatives. Source: ECMA-262, section 22.2, of which this is the regular part.
/// Errors: `kInvalidArgument` naming the offset of what is not supported.
[[nodiscard]] Result<Fragment> pattern_content(std::string_view pattern, GrammarBuilder& builder,
                                               JsonRules& rules);

}  // namespace tidemill::engines
