// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/parquet_rows.hpp"

#include <array>
#include <dlfcn.h>
#include <filesystem>
#include <string>

#include "base/result.hpp"
#include "base/text/clip.hpp"
#include "storage/dataset/parquet/module.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kMaxShown = 300;

// Returns the file of the module: next to an installed program, where this build made it, or where
// libraries are installed, for other programs.
std::string module_path() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::array<std::filesystem::path, 2> preferred = {
      program.parent_path() / TIDEMILL_PARQUET_BESIDE_PROGRAM, TIDEMILL_PARQUET_BUILT};
  for (const std::filesystem::path& path : preferred) {
    if (std::filesystem::exists(path, error)) {
      return path.string();
    }
  }
  return TIDEMILL_PARQUET_INSTALLED;
}

struct ParquetModule {
  ReadParquetFunction* read;
};

// The module stays loaded, because Arrow's library cannot be unloaded.
Result<ParquetModule> load_module() {
  const std::string path = module_path();
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = module == nullptr ? nullptr : ::dlsym(module, kReadParquetFunction);
  if (function == nullptr) {
    const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): has a value for each thread
    return invalid_argument("is a Parquet file, and what reads them cannot be loaded: " +
                            std::string(why == nullptr ? path : why));
  }
  return ParquetModule{reinterpret_cast<ReadParquetFunction*>(function)};
}

}  // namespace

Status read_parquet_rows(const ParquetInput& input, const ParquetLimits& limits,
                         const OnParquetRow& on_row) {
  Status row_failure;  // has its location already, and is not shortened
  const OnParquetRow keep_failure = [&on_row, &row_failure](const ParquetRow& row) {
    row_failure = on_row(row);
    return row_failure;
  };
  TIDEMILL_ASSIGN_OR_RETURN(const ParquetModule module, load_module());
  Status outcome;
  module.read(input, limits, keep_failure, outcome);
  if (outcome.ok() || !row_failure.ok()) {
    return row_failure;
  }
  return {outcome.code(), clipped(outcome.message(), kMaxShown)};
}

}  // namespace tidemill::storage
