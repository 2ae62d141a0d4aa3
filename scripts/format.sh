#!/usr/bin/env bash
# Formats every C++ file of the repository with clang-format-14. A test checks the same.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd "$foreload_root"
command -v clang-format-14 >/dev/null || fail "clang-format-14 is not installed: scripts/setup.sh --tests"
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu')
clang-format-14 -i --style=file "${files[@]}"
git diff --stat -- '*.h' '*.cc' '*.cu' | tail -n 1
