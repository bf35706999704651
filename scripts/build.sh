#!/usr/bin/env bash
# Configures (when needed) and builds one of the builds of CMakePresets.json.
#   scripts/build.sh release|test|asan|tsan|fuzz|bundle
#   release  the program, in build/release
#   test     its tests as well, in the same folder: what is compiled there is not compiled again
#   asan     program and tests under AddressSanitizer and UndefinedBehaviorSanitizer, in build/asan
#   tsan     the same under ThreadSanitizer, in build/tsan
#   fuzz     the fuzz targets with libFuzzer (clang), in build/fuzz
#   bundle   program and tests for every GPU architecture (scripts/bundle.sh), in build/bundle
# Progress goes to standard error, as one line that rewrites itself on a terminal; a failed build prints what the
# compiler said. Variables: FURLONG_JOBS, the number of compilers at once; FURLONG_CUDA=ON|OFF|AUTO, whether the CUDA
# engine is built (AUTO: where a toolkit and a driver are found, for tests a toolkit alone);
# FURLONG_WARNINGS_AS_ERRORS=ON. A folder keeps the last two until they are given again.
# Exit status: 0 built, 1 not built, 2 wrong arguments.
set -euo pipefail

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
settings=()
target=all
case "${1:-}" in
  release) preset=release target=furlong ;;
  test) preset=release settings+=(FURLONG_BUILD_TESTS=ON) ;;
  asan|tsan|fuzz|bundle) preset=$1 ;;
  -h|--help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
for name in FURLONG_CUDA FURLONG_WARNINGS_AS_ERRORS; do
  [[ -z ${!name:-} ]] || settings+=("$name=${!name}")
done

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

# Whether the folder is configured, and with these settings.
configured() {
  local setting
  [[ $folder/build.ninja -nt CMakePresets.json ]] || return 1
  for setting in "${settings[@]}"; do
    grep -q "^${setting%%=*}:[A-Z]*=${setting#*=}$" "$folder/CMakeCache.txt" || return 1
  done
}
if ! configured; then
  echo "build: configuring $folder; the first build takes some minutes" >&2
  cmake --preset "$preset" "${settings[@]/#/-D}" >"$log" 2>&1 || fail "configuring failed"
  sed -n 's/^-- CUDA engine: /build: CUDA engine: /p' "$log" >&2
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
ninja -C "$folder" -j "$jobs" "$target" 2>&1 | show_progress || fail "compiling failed"
