// SPDX-License-Identifier: Apache-2.0
// The filters on sequences. Each function implements the filter named after `filter_`.
#pragma once

#include "engines/chat/builtins.hpp"

namespace tidemill::engines::chat {

[[nodiscard]] Value filter_batch(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_dictsort(Runtime& runtime, const Value& input,
                                    const Arguments& arguments);
[[nodiscard]] Value filter_first(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_groupby(Runtime& runtime, const Value& input,
                                   const Arguments& arguments);
[[nodiscard]] Value filter_items(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_join(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_last(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_length(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_list(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_map(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_max(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_min(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_reject(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_rejectattr(Runtime& runtime, const Value& input,
                                      const Arguments& arguments);
[[nodiscard]] Value filter_reverse(Runtime& runtime, const Value& input,
                                   const Arguments& arguments);
[[nodiscard]] Value filter_select(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_selectattr(Runtime& runtime, const Value& input,
                                      const Arguments& arguments);
[[nodiscard]] Value filter_slice(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_sort(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_sum(Runtime& runtime, const Value& input, const Arguments& arguments);
[[nodiscard]] Value filter_unique(Runtime& runtime, const Value& input, const Arguments& arguments);

}  // namespace tidemill::engines::chat
