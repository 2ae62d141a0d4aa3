#!/usr/bin/env bash
# Set-up, build, all tests. Ends with ctest's closing line.
#
#   scripts/test.sh                          preset dev
#   scripts/test.sh --preset asan            or tsan, minimal
#   scripts/test.sh --label LABEL            only tests with this ctest label (a regular expression)
#   scripts/test.sh --without LABEL          all but those with this label
#   scripts/test.sh --match NAME             only tests whose name matches
#   scripts/test.sh --fuzz 60                builds the fuzzers and runs each for 60 seconds instead
#
# FORELOAD_SKIP_SETUP=1 leaves the packages alone. FORELOAD_JOBS sets the number of parallel jobs.
# FORELOAD_DATA names the folder of recorded traces; without it (or ../shared/data) the tests that need it are skipped
# and counted.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd "$foreload_root"

preset=dev fuzz_seconds=0 ctest_options=()
while (($# > 0)); do
  case $1 in
    --preset) preset=${2-}; shift ;;
    --fuzz) fuzz_seconds=${2-}; shift ;;
    --label) ctest_options+=(-L "${2-}"); shift ;;
    --without) ctest_options+=(-LE "${2-}"); shift ;;
    --match) ctest_options+=(-R "${2-}"); shift ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown option $1 (--preset, --fuzz, --label, --without, --match)" ;;
  esac
  shift
done
case $preset in dev | asan | tsan | minimal) ;; *) fail "no test preset '$preset' (dev, asan, tsan, minimal)" ;; esac
[[ $fuzz_seconds =~ ^[0-9]+$ ]] || fail "--fuzz needs a number of seconds, not '$fuzz_seconds'"

mkdir -p build
step 1 3 "Set-up"
if [[ ${FORELOAD_SKIP_SETUP-} == 1 ]]; then note "skipped (FORELOAD_SKIP_SETUP=1)"; else scripts/setup.sh --tests; fi

if ((fuzz_seconds > 0)); then
  step 2 3 "Build (preset fuzz)"
  build_preset fuzz
  step 3 3 "Fuzz, $fuzz_seconds s each"
  exec python3 scripts/fuzz.py --build build/fuzz --corpus tests/corpus --seconds "$fuzz_seconds"
fi

step 2 3 "Build (preset $preset)"
build_preset "$preset"

step 3 3 "Test (preset $preset)"
report=build/$preset/test-report.xml
rm -f "$report"
status=0
ctest --preset "$preset" --parallel "$(nproc)" --output-junit "$foreload_root/$report" --no-tests=error \
  --test-output-size-passed 65536 "${ctest_options[@]}" || status=$?
python3 scripts/test_summary.py "$report" || status=1
exit "$status"
