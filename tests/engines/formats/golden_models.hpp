// SPDX-License-Identifier: Apache-2.0
// The folder of the golden models.
#pragma once

#include <filesystem>

namespace tidemill::engines {

/// Has a folder for each model.
inline const std::filesystem::path kModels = TIDEMILL_TEST_DIR "/golden/engine/models";

}  // namespace tidemill::engines
