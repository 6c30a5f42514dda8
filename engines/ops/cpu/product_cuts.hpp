// SPDX-License-Identifier: Apache-2.0
// How products are divided into jobs, for all types of weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engines/ops/cpu/kernels.hpp"

namespace tidemill::engines::cpu {

/// Approximate multiply-adds per cycle of one core, used in cost estimates.
inline constexpr std::int64_t kRate = 16;

/// Returns the stride for rows of `cols` elements that are copied for a product: an odd number of
/// cache lines. Rows at a stride of whole kilobytes would map to few sets of the first-level cache
/// and evict each other. Units: elements of `element_bytes` bytes.
[[nodiscard]] inline std::int64_t spread_stride(std::int64_t cols,
                                                std::int64_t element_bytes) noexcept {
  const std::int64_t line = 64 / element_bytes;
  return ((cols + line - 1) / line | 1) * line;
}

/// Returns how many of `panels` panels of `panel_bytes` are transposed or expanded at a time: a
/// multiple of the panels in a tall tile, as large as the second-level cache allows with room left
/// for the rows, and small enough that each of `workers` workers gets several groups.
[[nodiscard]] inline std::int64_t panels_made_at_once(std::int64_t panels, std::int64_t panel_bytes,
                                                      std::int64_t workers,
                                                      const KernelTable& kernels) noexcept {
  constexpr std::int64_t kGroupsPerWorker = 4;
  const std::int64_t width = kernels.tile_panels;
  const std::int64_t fitting = kernels.made_panel_bytes / (width * panel_bytes);
  const std::int64_t share = panels / (width * workers * kGroupsPerWorker);
  return std::max<std::int64_t>(1, std::min(fitting, share)) * width;
}

/// Returns the job for the columns of panels [first, end) of a product. The panels are stored from
/// `panels` on, `panel_stride` elements apart.
[[nodiscard]] inline ProductJob panels_of(ProductJob job, std::int64_t first, std::int64_t end,
                                          const void* panels, std::int64_t panel_stride) noexcept {
  const std::int64_t column = first * kPanel;
  job.y += column;
  job.bias = job.bias == nullptr ? nullptr : job.bias + column;
  job.cols = std::min(job.cols, end * kPanel) - column;
  job.panels = panels;
  job.panel_stride = panel_stride;
  return job;
}

}  // namespace tidemill::engines::cpu
