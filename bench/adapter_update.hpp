// SPDX-License-Identifier: Apache-2.0
// Measures how a trained adapter gets to the engines of other processes of this host.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace tidemill::bench {

/// How long an update of four engines may take. Units: seconds.
inline constexpr double kAdapterUpdateTarget = 0.020;

/// What is measured.
struct AdapterUpdateMeasure {
  /// The random base. Its linear layers give the adapter of rank 16 its shapes.
  std::string preset = "1b";
  std::uint32_t engines = 4;      // processes with one each
  std::uint32_t repetitions = 9;  // after three that warm up
};

/// An adapter that a trainer has changed and that all engines serve. Medians of the repetitions.
struct AdapterUpdateFigure {
  std::uint64_t bytes = 0;
  double seconds = 0.0;         // from the start of the snapshot until the last engine serves it
  double save_seconds = 0.0;    // of the snapshot: copied to shared memory and digested
  double load_seconds = 0.0;    // the rest: from the publication on
  double copy_seconds = 0.0;    // one thread copies the bytes to memory that was used before
  double digest_seconds = 0.0;  // one thread computes the digest of the copy
};

/// Measures updates through the parts of a run: a training job that saves into shared memory, the
/// version keeper, proxies, links, gates and devices, which verify the digest and prepare the
/// adapter before they accept it. Nothing is generated meanwhile. Starts processes by forking, so
/// the caller must have no other thread.
/// Errors: `kInvalidArgument` for an unknown preset; `kUnavailable` if a process or a socket cannot
/// be made, or an engine does not reply; those of the engine.
[[nodiscard]] Result<AdapterUpdateFigure> measure_adapter_update(const AdapterUpdateMeasure& how);

}  // namespace tidemill::bench
