#!/usr/bin/env bash
# A test of the tests: deliberately broken kernels, each of which the suite must catch.
#   tests/mutants/run.sh [NAME...]      all mutants, or those named
# Every NAME.sed changes one source file (its first line says which) of a copy of the tree; kernels carry no switches for
# this. A mutant that changes nothing (the source has moved on) or does not compile is an error, not a success. One
# instruction set, the tests of attention and conversions, and while one mutant is tested the next one compiles: two
# cores need some four minutes. Mutants of kernels/native/ have a copy and tests of their own; they are skipped, by name,
# where the CPU lacks native mode's instructions. Needs cmake, ninja and a compiler.
# Exit code 0: all caught; 1: one survived; 2: a mutant or the set-up is broken.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
seconds=300  # of one run; a mutant that never ends counts as caught

say() { printf 'mutants: %s\n' "$*"; }
broken() { say "$*" >&2; exit 2; }
# line KEY NAME: what the mutant says about itself
line() { sed -n "s/^# $1: //p" "$here/$2.sed"; }

names=("$@")
if [ $# = 0 ]; then for file in "$here"/*.sed; do names+=("$(basename "$file" .sed)"); done; fi
for name in "${names[@]}"; do [ -e "$here/$name.sed" ] || broken "no mutant $name in tests/mutants"; done
# By file: undoing one mutant and making the next then compile the same objects once.
mapfile -t names < <(for name in "${names[@]}"; do printf '%s %s\n' "$(line file "$name")" "$name"; done | sort | cut -d' ' -f2)

flags=" $(grep -m1 -E '^(flags|Features)' /proc/cpuinfo | cut -d: -f2-) "
isa=portable
if [[ $flags == *" avx2 "* && $flags == *" fma "* && $flags == *" f16c "* ]]; then isa=avx2; fi
if [[ $flags == *" asimd "* ]]; then isa=neon; fi
plain=() native=()
for name in "${names[@]}"; do
  if [[ $(line file "$name") != kernels/native/* ]]; then
    plain+=("$name")
  elif [[ $flags == *" avx512_bf16 "* && $flags == *" avx512vl "* ]]; then
    native+=("$name")
  else
    say "skipped   $name: CPU lacks avx512_bf16"
  fi
done

work=$(mktemp -d)
testing= tester=  # the mutant whose tests are running, and their process
clean_up() {
  if [ -n "$tester" ]; then kill "$tester" 2> /dev/null || true; fi
  rm -rf "$work"
}
trap clean_up EXIT

# The copy is cut down to one instruction set, quick to compile, and the tests of the kernels at hand.
# make_copy ISA TESTS...: sets tree and build
make_copy() {
  local isa=$1 keep=() pattern base
  shift
  for pattern in "$@"; do keep+=(! -name "$pattern"); done
  tree=$work/tree-$isa build=$work/build-$isa
  mkdir "$tree"
  tar -C "$root" --exclude=./build --exclude=./.git --exclude=./results -cf - . | tar -C "$tree" -xf -
  # dispatch.cpp links native mode on every x86 build, so its row keeps the flags of the one it builds on
  base=$(sed -n -E 's/^ *kvroof_isa_row\(avx512 (.*)\)/\1/p' "$tree/cmake/isa_rows.cmake")
  sed -i -E "s/kvroof_native_row\(avx512_bf16 avx512 /&$base /; /kvroof_isa_row\((portable|avx2|avx512|neon)[ )]/{/kvroof_isa_row\($isa[ )]/!d}; s/-O3/-O1/" \
    "$tree/cmake/isa_rows.cmake"
  grep -q "kvroof_isa_row($isa" "$tree/cmake/isa_rows.cmake" || broken "cmake/isa_rows.cmake has no row $isa any more"
  find "$tree/tests" -maxdepth 1 -name 'test_*.cpp' "${keep[@]}" -delete
  say "building the copy for $isa"
  if ! { cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
           -DKVROOF_BUILD_BENCH=OFF > "$work/log" 2>&1 && compile; }; then
    tail -30 "$work/log" >&2
    broken "the unchanged copy does not build"
  fi
}

unset KVROOF_ISA KVROOF_EXPECT_ISAS KVROOF_TEST_CASE
compile() { cmake --build "$build" --target kvroof_tests > "$work/log" 2>&1; }

# start_tests NAME FILTER: in the background, on a copy of the program. The cores are shared with the compiler, so
# waiting threads must not spin.
start_tests() {
  testing=$1
  cp "$build/tests/kvroof_tests" "$work/tests"
  OMP_WAIT_POLICY=passive timeout "$seconds" "$work/tests" --gtest_filter="$2-*Long*" --gtest_fail_fast --gtest_brief=1 \
    > "$work/run" 2>&1 &
  tester=$!
}

# Waits for them; sets status, and first to the first test that failed.
end_tests() {
  status=0
  wait "$tester" 2> /dev/null || status=$?
  tester=
  first=$(grep -m1 -oE '\[  FAILED  \] [A-Za-z0-9_/]+\.[A-Za-z0-9_/]+' "$work/run" | sed 's/.*\] //' || true)
}

survived=0
judge() {
  [ -n "$tester" ] || return 0
  end_tests
  if [ "$status" = 0 ]; then
    survived=$((survived + 1))
    say "SURVIVED  $testing: $(line breaks "$testing")"
  else
    if [ "$status" = 124 ]; then first="no end after $seconds s"; fi
    if [ "$status" -gt 128 ]; then first="signal $((status - 128))"; fi
    say "caught    $testing (${first:-exit code $status})"
  fi
}

# try ISA TESTS -- NAMES...
try() {
  local isa=$1 tests=()
  shift
  while [ "$1" != -- ]; do tests+=("$1"); shift; done
  shift
  [ $# -gt 0 ] || return 0
  make_copy "$isa" "${tests[@]}"
  start_tests unchanged '*'
  end_tests
  if [ "$status" != 0 ]; then
    tail -30 "$work/run" >&2
    broken "the unchanged copy fails its tests (${first:-exit code $status}): nothing can be learnt from mutants"
  fi
  local name file filter
  for name in "$@"; do
    file=$(line file "$name")
    [ -e "$tree/$file" ] || broken "$name: $file is not there any more"
    cp -p "$tree/$file" "$work/original"
    sed -E -f "$here/$name.sed" "$work/original" > "$tree/$file"
    if cmp -s "$work/original" "$tree/$file"; then broken "$name: changes nothing in $file; bring it up to date"; fi
    if ! compile; then
      grep -m3 -E 'error' "$work/log" >&2 || tail -5 "$work/log" >&2
      broken "$name: does not compile"
    fi
    cp -p "$work/original" "$tree/$file"
    touch "$tree/$file"
    judge
    filter=$(line tests "$name")
    start_tests "$name" "${filter:-*}"
  done
  judge
}

try "$isa" 'test_decode_attention*.cpp' test_conversions.cpp test_float_state.cpp -- ${plain[@]+"${plain[@]}"}
try avx512 'test_native*.cpp' -- ${native[@]+"${native[@]}"}
count=$((${#plain[@]} + ${#native[@]}))
say "$((count - survived)) of $count caught"
[ "$survived" = 0 ] || exit 1
