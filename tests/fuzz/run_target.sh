#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one fuzz target for TIDEMILL_FUZZ_SECONDS (default 60). New inputs are kept in WORK/corpus for the
# next run. Inputs that fail are written to WORK/findings.
#   run_target.sh PROGRAM NAME WORK [FLAG or FOLDER]...
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1 name=$2 work=$3
mkdir -p "$work/corpus/$name" "$work/findings/$name"
folders=("$work/corpus/$name")
for folder in "$here/corpus/$name" "$here/cases/$name"; do
  [[ -d $folder ]] && folders+=("$folder")
done
flags=()
[[ -s $work/$name.seeds ]] && flags+=("-seed_inputs=@$work/$name.seeds")
[[ -e $here/dictionaries/$name.dict ]] && flags+=("-dict=$here/dictionaries/$name.dict")
# A small quarantine, because quarantined memory counts toward the memory limit of an input.
export ASAN_OPTIONS=quarantine_size_mb=16:${ASAN_OPTIONS:-}
exec "$program" -max_total_time="${TIDEMILL_FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=1024 \
  -malloc_limit_mb=512 -print_final_stats=1 -artifact_prefix="$work/findings/$name/" \
  "${flags[@]}" "${folders[@]}" "${@:4}"
