#!/bin/sh
# tools/setup.sh [--again] PART...: installs what a part of kvroof needs, says what, and remembers that it did.
#   python    to run the command at all        report    to draw pages
#   build     to build, test and measure       aarch64   to test the Arm kernels under emulation
#   mpi       to split a context over processes (Open MPI)
# What is there already is not touched. Debian packages are used where they exist; two things that no distribution or
# only a newer one has (plotly, oneDNN 3) go into build/venv. Those two are optional: without them everything else works.
# The second call reads a stamp under build/ and needs no network; --again ignores the stamp.
set -eu
root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
state=$root/build/.setup
venv=$root/build/venv
say() { printf 'kvroof: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

again=no
if [ "${1:-}" = --again ]; then again=yes; shift; fi
[ $# -ge 1 ] || fail "setup.sh: no part named; parts are python, report, build, aarch64, mpi"
for part in "$@"; do
  case $part in python | report | build | aarch64 | mpi) ;; *) fail "setup.sh: unknown part '$part'; parts are python, report, build, aarch64, mpi" ;; esac
done

# A stamp holds the checksum of this script: a changed list of packages is looked at again.
version=$(cksum < "$root/tools/setup.sh")
wanted=
for part in "$@"; do
  if [ "$again" = yes ] || [ "$(cat "$state/$part" 2>/dev/null || true)" != "$version" ]; then wanted="$wanted $part"; fi
done
[ -n "$wanted" ] || exit 0
mkdir -p "$state" 2>/dev/null || fail "cannot write to $root/build; make it writable or use a checkout of your own"

wants() { case " $wanted " in *" $1 "*) return 0 ;; esac; return 1; }

# ---- Debian packages ---------------------------------------------------------------------------------------------------
packages_of() {
  case $1 in
    python) echo python3 ;;
    report) echo python3 python3-venv ;;
    build) echo g++ cmake ninja-build libxsimd-dev libbenchmark-dev libgtest-dev nlohmann-json3-dev libhwloc-dev \
                python3 python3-venv python3-jsonschema ;;
    aarch64) echo cmake ninja-build g++-aarch64-linux-gnu qemu-user googletest libxsimd-dev nlohmann-json3-dev python3 ;;
    mpi) echo libopenmpi-dev openmpi-bin ;;
  esac
}
# Without these a part still works, only with less.
is_optional() { case $1 in libhwloc-dev | python3-venv | python3-jsonschema | libdnnl-dev) return 0 ;; esac; return 1; }
installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]; }
candidate_major() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9][0-9]*\).*/\2/p'; }
onednn_in_venv() { [ -d "$venv/lib/cmake/dnnl" ]; }

missing_packages() {
  seen=" "
  for part in $wanted; do
    for package in $(packages_of "$part"); do
      case $seen in *" $package "*) continue ;; esac
      seen="$seen$package "
      installed "$package" || printf '%s ' "$package"
    done
  done
}

as_root=
if [ "$(id -u)" != 0 ]; then
  if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then as_root=sudo; else as_root=none; fi
fi

apt_refreshed=no
apt_refresh() {
  [ "$apt_refreshed" = no ] || return 0
  apt_refreshed=yes
  say "refreshing the package lists"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get update >"$state/apt.log" 2>&1 ||
    say "could not refresh the package lists (no network?); going on with what is known (log: $state/apt.log)"
}
apt_install() {
  say "installing $*"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$state/apt.log" 2>&1
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  missing=$(missing_packages)
  if [ -n "$missing" ]; then
    if [ "$as_root" = none ]; then
      fail "these packages are missing and there is neither root nor sudo to install them; run: apt-get install --no-install-recommends $missing"
    fi
    apt_refresh
    # shellcheck disable=SC2086
    if ! apt_install $missing; then
      # One name that this suite does not have must not keep the others out.
      for package in $missing; do apt_install "$package" || say "could not install $package (log: $state/apt.log)"; done
    fi
    for package in $(missing_packages); do
      is_optional "$package" || fail "package $package is needed and could not be installed; see $state/apt.log, or run: apt-get install $package"
    done
  fi
  if wants build && ! installed libdnnl-dev && ! onednn_in_venv; then
    if [ "$(candidate_major libdnnl-dev)" = "" ] && [ "$as_root" != none ]; then apt_refresh; fi
    major=$(candidate_major libdnnl-dev)
    if [ "${major:-0}" -ge 3 ] && [ "$as_root" != none ]; then
      apt_install libdnnl-dev || say "could not install libdnnl-dev (log: $state/apt.log)"
    fi
  fi
else
  command -v python3 >/dev/null || fail "python3 not found, and no apt-get to install it with; install Python 3.9 or newer"
  say "no apt-get here: CMake will say what it misses. Needed: a C++20 compiler, CMake 3.25, Ninja, xsimd >= 8.1, Google Benchmark, GoogleTest, nlohmann-json; optional: hwloc, oneDNN 3"
fi

# ---- build/venv --------------------------------------------------------------------------------------------------------
make_venv() {
  "$venv/bin/python3" -c '' 2>/dev/null && return 0
  rm -rf "$venv"
  python3 -m venv --system-site-packages "$venv" >"$state/venv.log" 2>&1
}
pip_install() {
  # A short patience: without a network this must end soon.
  "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check --timeout 30 --retries 2 "$@" >>"$state/venv.log" 2>&1
}
system_onednn() {
  installed libdnnl-dev || return 1
  [ "$(dpkg-query -W -f '${Version}' libdnnl-dev | sed 's/^[0-9]*://; s/[^0-9].*//')" -ge 3 ]
}

if wants report || wants build; then
  if ! python3 -c 'import plotly' 2>/dev/null && ! "$venv/bin/python3" -c 'import plotly' 2>/dev/null; then
    say "installing plotly into build/venv"
    { make_venv && pip_install plotly; } ||
      say "plotly could not be installed (log: $state/venv.log); pages cannot be drawn. Later: tools/setup.sh --again report"
  fi
fi
if wants build && ! system_onednn && ! onednn_in_venv; then
  if [ "$(uname -m)" = x86_64 ]; then
    say "installing oneDNN 3.2 into build/venv (180 MB)"
    { make_venv && pip_install onednn-devel-cpu-gomp==2023.2.0; } ||
      say "oneDNN could not be installed (log: $state/venv.log); its rows will say \"not measured: oneDNN not found\". Later: tools/setup.sh --again build"
  else
    say "no oneDNN 3 for $(uname -m) here; its rows will say \"not measured: oneDNN not found\""
  fi
fi

for part in $wanted; do printf '%s\n' "$version" >"$state/$part"; done
