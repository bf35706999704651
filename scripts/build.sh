#!/usr/bin/env bash
# Configures (if needed) and builds one of the builds of CMakePresets.json.
#   scripts/build.sh release|test|debug|asan|tsan|fuzz|bundle
#   release  the program, in build/release
#   test     the program and its tests, in the same folder; compiled files are reused
#   debug    program and tests for a debugger, without optimization, in build/debug
#   asan     program and tests under AddressSanitizer and UndefinedBehaviorSanitizer, in build/asan
#   tsan     program and tests under ThreadSanitizer, in build/tsan
#   fuzz     the fuzz targets with libFuzzer (clang), in build/fuzz
#   bundle   program and tests for every GPU architecture (scripts/bundle.sh), in build/bundle
# Progress goes to standard error, as one line that rewrites itself on a terminal. A failed build prints the compiler's
# errors. Environment variables: FURLONG_JOBS, the number of parallel compilers; FURLONG_CUDA=ON|OFF|AUTO, whether to
# build the CUDA engine (AUTO: if a toolkit and a driver are found; for tests a toolkit is enough);
# FURLONG_WARNINGS_AS_ERRORS=ON. A build folder keeps the last two until they are given again.
# Exit status: 0 success, 1 build failed, 2 invalid arguments.
set -euo pipefail

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
settings=()
target=all
case "${1:-}" in
  release) preset=release target=furlong ;;
  test) preset=release settings+=(FURLONG_BUILD_TESTS=ON) ;;
  debug|asan|tsan|fuzz|bundle) preset=$1 ;;
  -h|--help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
for name in FURLONG_CUDA FURLONG_WARNINGS_AS_ERRORS; do
  [[ -z ${!name:-} ]] || settings+=("$name=${!name}")
done

if [[ $(uname -s) != Linux || $(uname -m) != x86_64 ]]; then
  echo "build: Furlong needs Linux on x86-64; this is $(uname -s) on $(uname -m)" >&2
  exit 1
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=build/$preset
log=$folder/build.log
mkdir -p "$folder"
# Two builds in one folder would overwrite each other's files. On a file system without locks they still may.
exec 9>"$folder/.lock"
flock --nonblock --conflict-exit-code 9 9 || (( $? != 9 )) || {
  echo "build: waiting for another build in $folder" >&2
  flock 9
}

# A compiler takes up to about 1 GiB, so machines with many cores and little memory run fewer.
memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
limit_gib=$(( $(scripts/limits.sh memory_mib) / 1024 ))
cores=$(scripts/limits.sh cores)
jobs=$(printf '%s\n' "$memory_gib" "$limit_gib" "$cores" | sort -n | head -n 1)
jobs=${FURLONG_JOBS:-$(( jobs < 1 ? 1 : jobs ))}

# Shows the first failure, which usually causes the others.
fail() {
  sed -n '/^FAILED:\|^CMake Error/,$p' "$log" | grep -v '^\[[0-9]*/[0-9]*\]' | cut -c -400 | head -n 60 >&2 || true
  echo "build: $1; full log: $PWD/$log" >&2
  exit 1
}

# Prints a variable of the folder's earlier configuration.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$folder/CMakeCache.txt" 2>/dev/null || true; }
# A copied or moved tree brings the configuration of another place, whose sources it would build, and CMake keeps the
# compiler that it found first.
fresh=()
source=$(cached CMAKE_HOME_DIRECTORY) nvcc=$(cached FURLONG_NVCC) wanted=$(type -P "${CUDACXX:-}" || true)
if [[ -n $source && ! $source -ef . ]] || [[ -n $nvcc && -n $wanted && ! $wanted -ef $nvcc ]]; then
  fresh=(--fresh)
  for name in FURLONG_CUDA FURLONG_WARNINGS_AS_ERRORS FURLONG_BUILD_TESTS; do
    value=$(cached "$name")
    [[ -z $value || " ${settings[*]} " == *" $name="* ]] || settings+=("$name=$value")
  done
fi

# Whether the folder is configured with these settings.
configured() {
  local setting
  [[ $folder/build.ninja -nt CMakePresets.json ]] || return 1
  (( ! ${#fresh[@]} )) || return 1
  for setting in "${settings[@]}"; do
    grep -q "^${setting%%=*}:[A-Z]*=${setting#*=}$" "$folder/CMakeCache.txt" || return 1
  done
}
if ! configured; then
  echo "build: configuring $folder; the first build takes some minutes" >&2
  cmake --preset "$preset" "${fresh[@]}" "${settings[@]/#/-D}" >"$log" 2>&1 9>&- || fail "configuration failed"
  sed -n 's/^-- CUDA engine: /build: CUDA engine: /p' "$log" >&2
fi

if [[ -t 2 ]]; then line_start=$'\r' line_end=$'\e[K'; else line_start='' line_end=$'\n'; fi
show_progress() {
  local line tenth shown=-1
  while IFS= read -r line; do
    echo "$line" >&3
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\ (Building|Linking) ]] || continue  # skips the checks that every build makes
    tenth=$(( BASH_REMATCH[1] * 10 / BASH_REMATCH[2] ))
    if [[ -t 2 ]] || (( tenth > shown )); then
      printf '%sbuild: %s of %s%s' "$line_start" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$line_end" >&2
      shown=$tenth
    fi
  done 3>"$log"
  if [[ -t 2 ]] && (( shown >= 0 )); then printf '\r\e[K' >&2; fi
}
ninja -C "$folder" -j "$jobs" "$target" 2>&1 9>&- | show_progress || fail "compilation failed"
