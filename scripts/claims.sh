#!/usr/bin/env bash
# Measures what the project states about itself: every entry of bench/claims.toml, or those that match a GLOB.
#
#   scripts/claims.sh [--json] [--list] [--no-build] [GLOB...]     e.g. scripts/claims.sh 'main.*ratio'
#
# Exit 0 when every measured claim holds, 1 when one does not, 2 when the file of claims or the command line is wrong.
set -euo pipefail
exec python3 "$(dirname -- "${BASH_SOURCE[0]}")/claims.py" "$@"
