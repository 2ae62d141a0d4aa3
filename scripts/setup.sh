#!/usr/bin/env bash
# Installs, by name, every Debian package that Foreload needs. Debian 12; as root, else through sudo.
#
#   scripts/setup.sh            what the product and its tests need to be built
#   scripts/setup.sh --tests    and what only some tests use (clang, fio, promtool, ...)
#   scripts/setup.sh --check    installs nothing; exit 1 and the missing names when something is missing
#
# When all is present it returns at once and asks no package index.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

build_packages=(
  # compiler and build
  g++ cmake ninja-build ccache pkg-config git python3
  # telemetry
  libzmq3-dev cppzmq-dev libprotobuf-dev protobuf-compiler libmsgpack-cxx-dev
  # storage, checksums, compression, TLS
  liburing-dev libxxhash-dev libzstd-dev liblz4-dev zlib1g-dev libssl-dev
  # configuration, command line, logs, JSON lines
  libtomlplusplus-dev libcli11-dev libspdlog-dev libfmt-dev libsimdjson-dev
  # metrics and HTTP; the CMake package of prometheus-cpp looks for curl and civetweb
  prometheus-cpp-dev libcurl4-openssl-dev libcivetweb-dev libcpp-httplib-dev
  # tests and benchmarks
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
)

test_packages=(
  clang-14 libclang-rt-14-dev clang-format-14  # fuzzers, second compiler, format check
  fio                                          # the yardstick of the SSD claims
  prometheus                                   # promtool checks /metrics
  iproute2 iptables                            # network faults
  locales                                      # numbers are parsed alike in every locale
  strace                                       # shows that a look-up makes no system call
  python3-pytest python3-numpy                 # client/python
)

check_only=0
wanted=("${build_packages[@]}")
for argument in "$@"; do
  case $argument in
    --check) check_only=1 ;;
    --tests) wanted+=("${test_packages[@]}") ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown option $argument (--check, --tests)" ;;
  esac
done

command -v dpkg-query >/dev/null || fail "this is no Debian system: install what scripts/setup.sh lists by your own
       means, then set FORELOAD_SKIP_SETUP=1"

installed=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' 2>/dev/null |
  sed -n 's/^installed \([^:]*\).*/\1/p')
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done

if ((${#missing[@]} == 0)); then
  note "all ${#wanted[@]} packages are installed"
  exit 0
fi
if ((check_only)); then
  printf 'missing: %s\n' "${missing[*]}" >&2
  exit 1
fi

# shellcheck source=/dev/null
if [[ -r /etc/os-release ]] && (. /etc/os-release && [[ ${ID-} != debian || ${VERSION_ID-} != 12 ]]); then
  note "this is not Debian 12; trying the same package names"
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || fail "not root and no sudo; as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

# Packages such as prometheus would start a service that nobody asked for; a policy file of our own, if the machine has
# none, keeps them stopped.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi

apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y
  -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 -o APT::Color=0)
[[ -t 1 ]] && apt+=(-o Dpkg::Progress-Fancy=1)

note "installing ${#missing[@]} packages: ${missing[*]}"
"${apt[@]}" update || note "the package index could not be refreshed; trying with what is known"
"${apt[@]}" install --no-install-recommends "${missing[@]}" ||
  fail "apt-get could not install all of: ${missing[*]}
       the lines above say which one; is the network reachable, and are Debian's 'main' sources configured?"
note "set-up is complete"
