// SPDX-License-Identifier: Apache-2.0
// The keys of sections `model` and `data`: which model a run starts from, and which rows it reads.
// The help texts in data_options.cpp explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/schema.hpp"

namespace tidemill::workflows {

/// The type that weights are computed in.
enum class ModelDType : std::uint8_t { kF32, kBf16, kInt8, kNf4 };

/// Where a model's initial weights come from.
enum class ModelInit : std::uint8_t { kFiles, kRandom };

/// The model that a run starts from.
struct ModelOptions {
  std::string path;
  ModelInit init = ModelInit::kFiles;
  std::optional<ModelDType> dtype;  // absent: bf16 if the files hold bf16, else f32
};

/// What happens to the run if a row cannot be used.
enum class OnBadRow : std::uint8_t { kError, kSkip };

/// What happens to a prompt that is too long.
enum class OnLongPrompt : std::uint8_t { kError, kSkip, kTruncateLeft };

/// Files to train on: the only source of rows or one of several.
struct DataSource {
  std::string path;              // or a glob pattern
  std::optional<double> weight;  // either every source has a weight, or no source does
};

/// The rows that a run reads.
struct DataOptions {
  std::vector<DataSource> train;
  std::vector<std::string> eval;  // files or glob patterns
  bool shuffle = true;
  std::optional<std::uint64_t> seed;   // absent: the run's seed
  std::optional<std::int64_t> epochs;  // absent: 1, or as many as `train.steps` needs
  std::optional<std::int64_t> max_prompt_tokens;
  OnLongPrompt on_long_prompt = OnLongPrompt::kError;
  OnBadRow on_error = OnBadRow::kError;
  bool chat = false;
  std::string system;
  ConfigNode chat_template_kwargs{ConfigNode::Kind::kMap, {}, {}, {}, {}};
};

void describe(EnumSchema<ModelDType>& e);
void describe(EnumSchema<ModelInit>& e);
void describe(EnumSchema<OnBadRow>& e);
void describe(EnumSchema<OnLongPrompt>& e);
void describe(Schema<ModelOptions>& s);
void describe(Schema<DataSource>& s);
void describe(Schema<DataOptions>& s);

}  // namespace tidemill::workflows
