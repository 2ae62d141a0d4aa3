# Shared by the scripts beside it: messages, the repository root, the compiler cache. Sourced, never run.

foreload_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

if [[ -t 1 && -z ${NO_COLOR-} ]]; then
  bold=$'\e[1m' red=$'\e[31m' reset=$'\e[0m'
else
  bold='' red='' reset=''
fi

# step 2 3 "Build": a numbered heading, with the seconds since the script started.
step() { printf '%s[%s/%s] %s%s  (%ds)\n' "$bold" "$1" "$2" "$3" "$reset" "$SECONDS"; }
note() { printf '      %s\n' "$*"; }
fail() {
  printf '%serror:%s %s\n' "$red" "$reset" "$*" >&2
  exit 1
}

# Builds run with as many jobs as there are processors, fewer where memory is short: a translation unit with Protobuf
# and GoogleTest takes up to 1.5 GiB under a sanitizer.
build_jobs() {
  local cpus memory_gib by_memory
  cpus=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  by_memory=$((memory_gib * 2 / 3))
  ((by_memory < 1)) && by_memory=1
  printf '%s' "${FORELOAD_JOBS:-$((cpus < by_memory ? cpus : by_memory))}"
}

# Configures and builds a preset: build_preset dev [targets...]
build_preset() {
  local preset=$1 target targets=()
  shift
  for target in "$@"; do targets+=(--target "$target"); done
  (cd "$foreload_root" && cmake --preset "$preset" >"$foreload_root/build/configure-$preset.log" 2>&1) || {
    tail -n 30 "$foreload_root/build/configure-$preset.log" >&2
    fail "cmake --preset $preset failed (whole log: build/configure-$preset.log)"
  }
  grep -h '^-- Foreload\|^--   ' "$foreload_root/build/configure-$preset.log" | sed 's/^-- /      /' || true
  cmake --build "$foreload_root/build/$preset" --parallel "$(build_jobs)" "${targets[@]}" ||
    fail "the build of preset $preset failed; the first error above says where"
}
