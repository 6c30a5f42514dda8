// SPDX-License-Identifier: Apache-2.0
#include "actors/tuning/stores.hpp"

#include <utility>

#include "actors/gateway/api_keys.hpp"

namespace tidemill::actors {

Result<TuningStores> open_tuning_stores(const std::filesystem::path& path, FileSystem& files) {
  storage::JobDirectoryOptions options;
  options.path = path;
  options.random_bits = unpredictable_bits;
  TIDEMILL_ASSIGN_OR_RETURN(const std::shared_ptr<storage::JobDirectory> directory,
                            storage::JobDirectory::open(std::move(options), files));
  TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<storage::FileStore> store,
                            storage::FileStore::open(directory, {}));
  return TuningStores{std::move(store),
                      std::make_shared<storage::JobStore>(directory, storage::JobLimits{})};
}

}  // namespace tidemill::actors
