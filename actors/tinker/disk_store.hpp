// SPDX-License-Identifier: Apache-2.0
// Keeps the checkpoints and runs of Tinker's API in a directory.
//
//   ROOT/RUN/run.json
//   ROOT/RUN/KIND/NAME/checkpoint.json               describes the checkpoint
//                     /adapter_config.json           the adapter, in the PEFT layout
//                     /adapter_model.safetensors
//                     /optimizer.safetensors         if the state of the optimizer is stored
//                     /adapter_*.age                 in place of the adapter's files, if encrypted
//   ROOT/RUN/incomplete/                             what a killed server was writing
//   ROOT/RUN/replaced/KIND/NAME/                     what a killed server was replacing
//
// RUN is the id of the run with "." in place of ":". KIND is the part of a checkpoint's path that
// names its kind: weights, sampler_weights or external_weights.
#pragma once

#include <filesystem>
#include <memory>

#include "actors/tinker/checkpoint_store.hpp"
#include "base/files/file.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::actors::tinker {

/// Opens a store in the directory `root`, which is created if it does not exist; its parent must
/// exist. Borrows `files`. The store holds a lock on the directory, so that no other process uses
/// it. Errors: those of `make_directory`; `kUnavailable` if another process uses it.
[[nodiscard]] Result<std::unique_ptr<CheckpointStore>> open_disk_store(FileSystem& files,
                                                                       std::filesystem::path root,
                                                                       engines::ModelConfig model);

}  // namespace tidemill::actors::tinker
