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
enum class ModelDType : std::uint8_t { kF32, kBf16, kInt8, kNf4 };

/// Where a model's first weights come from.
enum class ModelInit : std::uint8_t { kFiles, kRandom };

struct ModelOptions {
  std::string path;
  ModelInit init = ModelInit::kFiles;
  std::optional<ModelDType> dtype;  // none: the files' own, f16 as f32
};

/// What a row that cannot be used does to the run.
enum class OnBadRow : std::uint8_t { kError, kSkip };

/// What a prompt that is too long does.
enum class OnLongPrompt : std::uint8_t { kError, kSkip, kTruncateLeft };

/// Files to train on, alone or one of several sources.
struct DataSource {
  std::string path;              // or a glob
  std::optional<double> weight;  // of all sources or of none
};

struct DataOptions {
  std::vector<DataSource> train;
  std::vector<std::string> eval;  // files or globs
  bool shuffle = true;
  std::optional<std::uint64_t> seed;   // none: the run's
  std::optional<std::int64_t> epochs;  // none: 1, or as many as `train.steps` needs
  std::optional<std::int64_t> max_prompt_tokens;
  OnLongPrompt on_long_prompt = OnLongPrompt::kError;
  OnBadRow on_error = OnBadRow::kError;
  bool chat = false;
  std::string system;
};

void describe(EnumSchema<ModelDType>& e);
void describe(EnumSchema<ModelInit>& e);
void describe(EnumSchema<OnBadRow>& e);
void describe(EnumSchema<OnLongPrompt>& e);
void describe(Schema<ModelOptions>& s);
void describe(Schema<DataSource>& s);
void describe(Schema<DataOptions>& s);

}  // namespace tidemill::workflows
