#!/usr/bin/env bash
# Set-up, build, and the main job: a sidecar, an engine that drives it, and a table that compares demand-only loading
# with prefetching. On a terminal the sidecar then stays up, so that its metrics can be looked at.
#
#   scripts/quickstart.sh [--once]     --once: stop the sidecar at the end (always so without a terminal)
#
# FORELOAD_SKIP_SETUP=1 leaves the packages alone. FORELOAD_JOBS sets the number of parallel build jobs.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd "$foreload_root"

keep=()
[[ -t 1 && -t 0 ]] && keep=(--keep-serving)
for argument in "$@"; do
  case $argument in
    --once) keep=() ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown option $argument (--once)" ;;
  esac
done

mkdir -p build
step 1 3 "Set-up"
if [[ ${FORELOAD_SKIP_SETUP-} == 1 ]]; then note "skipped (FORELOAD_SKIP_SETUP=1)"; else scripts/setup.sh; fi

step 2 3 "Build (preset release, target foreload)"
build_preset release foreload

step 3 3 "Run (scenario quickstart)"
exec build/release/cmd/foreload drive --scenario quickstart "${keep[@]}"
