// SPDX-License-Identifier: Apache-2.0
// Which model a run starts from, and which rows it reads. Meanings: data_options.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema.hpp"

namespace tidemill::workflows {

/// The type weights are computed in.
enum class ModelDType : std::uint8_t { kF32, kBf16 };

/// Where a model's first weights come from.
enum class ModelInit : std::uint8_t { kFiles, kRandom };

struct ModelOptions {
  std::string path;
  ModelInit init = ModelInit::kFiles;
  std::optional<ModelDType> dtype;  // none: the files' own, f16 as f32
};

/// What a row that cannot be used does to the run.
enum class OnBadRow : std::uint8_t { kError, kSkip };

struct DataOptions {
  std::vector<std::string> train;  // files or globs
  std::vector<std::string> eval;
  bool shuffle = true;
  std::optional<std::uint64_t> seed;   // none: the run's
  std::optional<std::int64_t> epochs;  // none: 1, or as many as `train.steps` needs
  std::optional<std::int64_t> max_prompt_tokens;
  OnBadRow on_long_prompt = OnBadRow::kError;
  OnBadRow on_error = OnBadRow::kError;
};

void describe(EnumSchema<ModelDType>& e);
void describe(EnumSchema<ModelInit>& e);
void describe(EnumSchema<OnBadRow>& e);
void describe(Schema<ModelOptions>& s);
void describe(Schema<DataOptions>& s);

}  // namespace tidemill::workflows
