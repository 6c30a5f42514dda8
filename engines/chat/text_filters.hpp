// SPDX-License-Identifier: Apache-2.0
// The filters for HTML, URLs and the layout of text. Each function implements the filter named
// after `filter_`.
#pragma once

#include "engines/chat/builtins.hpp"

namespace tidemill::engines::chat {

[[nodiscard]] Value filter_escape(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_filesizeformat(Runtime& runtime, const Value& input,
                                          const Arguments& arguments);
[[nodiscard]] Value filter_forceescape(Runtime& runtime, const Value& input,
                                       const Arguments& arguments);
[[nodiscard]] Value filter_indent(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_pprint(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_safe(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_striptags(Runtime& runtime, const Value& input,
                                     const Arguments& arguments);
[[nodiscard]] Value filter_truncate(Runtime& runtime, const Value& input,
                                    const Arguments& arguments);
[[nodiscard]] Value filter_urlencode(Runtime& runtime, const Value& input,
                                     const Arguments& arguments);
[[nodiscard]] Value filter_urlize(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_wordwrap(Runtime& runtime, const Value& input,
                                    const Arguments& arguments);
[[nodiscard]] Value filter_xmlattr(Runtime& runtime, const Value& input,
                                   const Arguments& arguments);

}  // namespace tidemill::engines::chat
