// SPDX-License-Identifier: Apache-2.0
// What a backend offers before a device is opened: its name, its traits, and how much memory it
// will take.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Size of a weight (O, I) that is prepared in element type `dtype`.
struct WeightSize {
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  DType dtype = DType::kF32;
};

/// The sizes of the weights that a process prepares: some once, others again for every new version.
struct WeightSizes {
  std::vector<WeightSize> permanent;  // prepared once, and never freed
  std::vector<WeightSize> replaced;   // prepared after those, again and again
  int live_sets = 0;                  // sets of `replaced` that exist at a time, incl. the latest
};

/// What a device reserves, and the limit of its memory. Units: bytes.
struct DeviceMemoryLimits {
  std::int64_t reserved = 0;  // address space that is mapped when the device is opened
  std::int64_t limit = 0;     // maximum total size of all blocks; 0: what the device has
};

/// Opens devices of one kind.
///
/// Estimates are upper bounds that the memory plan relies on. Units: bytes.
/// Threads: safe to use concurrently.
class BackendFactory {
public:
  BackendFactory() = default;
  BackendFactory(const BackendFactory&) = delete;
  BackendFactory& operator=(const BackendFactory&) = delete;
  virtual ~BackendFactory() = default;

  /// Returns a name for configuration and messages, like "cpu".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Returns the traits of every device that it opens.
  [[nodiscard]] virtual BackendTraits traits() const noexcept = 0;

  /// Opens a device whose loops run on `workers`, which must outlive it.
  /// Errors: `kUnimplemented` if this machine lacks what the backend needs, `kResourceExhausted`.
  [[nodiscard]] virtual Result<std::unique_ptr<Ops>> open(
      Workers& workers, const DeviceMemoryLimits& limits) const = 0;

  /// Returns the peak memory of `weights`, prepared one after the other, including the backend's
  /// padding.
  [[nodiscard]] virtual std::int64_t weight_bytes(const WeightSizes& weights) const = 0;
  /// Returns the size of a page of one layer's keys and values.
  [[nodiscard]] virtual std::int64_t kv_page_bytes(const AttentionShape& shape) const = 0;
  /// Returns the temporary memory of a product with a weight of type `dtype`, per row of `cols`
  /// elements.
  [[nodiscard]] virtual std::int64_t rounded_row_bytes(DType dtype, std::int64_t cols) const = 0;
  /// Returns the temporary memory of a weight's gradient over `rows` rows of its input, of `cols`
  /// elements.
  [[nodiscard]] virtual std::int64_t weight_gradient_bytes(std::int64_t rows,
                                                           std::int64_t cols) const = 0;
};

}  // namespace tidemill::engines
