#!/usr/bin/env bash
# Configures (when needed) and builds one preset of CMakePresets.json into build/PRESET.
#   scripts/build.sh release|test|asan|tsan
# Progress goes to standard error, as one line that rewrites itself on a terminal; a failed build prints what the
# compiler said. FURLONG_JOBS sets the number of compilers at once. Exit status: 0 built, 1 not built.
set -euo pipefail

preset=${1:?which preset: release, test, asan or tsan}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=build/$preset
log=$folder/build.log
mkdir -p "$folder"

# One compiler can take about 1 GiB, so that a machine with many cores and little memory gets fewer.
memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
cores=$(nproc)
jobs=${FURLONG_JOBS:-$(( memory_gib < 1 ? 1 : memory_gib < cores ? memory_gib : cores ))}

# Shows the first failure, which is what the others mostly follow from.
fail() {
  sed -n '/^FAILED:\|^CMake Error/,$p' "$log" | grep -v '^\[[0-9]*/[0-9]*\]' | cut -c -400 | head -n 60 >&2 || true
  echo "build: $1; the whole log: $PWD/$log" >&2
  exit 1
}

if [[ ! $folder/build.ninja -nt CMakePresets.json ]]; then
  echo "build: configuring $folder; the first build takes some minutes" >&2
  cmake --preset "$preset" >"$log" 2>&1 || fail "configuring failed"
fi

if [[ -t 2 ]]; then line_start=$'\r' line_end=$'\e[K'; else line_start='' line_end=$'\n'; fi
show_progress() {
  local line tenth shown=-1
  while IFS= read -r line; do
    echo "$line" >&3
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\ (Building|Linking) ]] || continue  # and not the checks that every build makes
    tenth=$(( BASH_REMATCH[1] * 10 / BASH_REMATCH[2] ))
    if [[ -t 2 ]] || (( tenth > shown )); then
      printf '%sbuild: %s of %s%s' "$line_start" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$line_end" >&2
      shown=$tenth
    fi
  done 3>"$log"
  if [[ -t 2 ]] && (( shown >= 0 )); then printf '\r\e[K' >&2; fi
}
ninja -C "$folder" -j "$jobs" 2>&1 | show_progress || fail "compiling failed"
