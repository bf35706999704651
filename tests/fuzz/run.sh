#!/usr/bin/env bash
# Runs fuzz targets with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer (clang; Debian package clang).
#   tests/fuzz/run.sh TARGET|all SECONDS   runs each target for SECONDS, one process at a time
#   tests/fuzz/run.sh --keep TARGET|all    adds inputs of earlier runs that reach new code to tests/fuzz/corpus
#   tests/fuzz/run.sh --seeds              writes the seed inputs to tests/fuzz/corpus
# Prints for each target: seconds, executions, covered edges, inputs, outcome. Inputs that reach new code are stored in
# build/fuzz/corpus, inputs of findings in build/fuzz/findings, output of targets in build/fuzz/logs.
# Exit status: 0 no finding, 1 a finding, 2 invalid arguments.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "tests/fuzz/run.sh"; }
mode=run
case "${1:-}" in
  -h|--help) usage; exit 0 ;;
  --keep) mode=keep; shift ;;
  --seeds) mode=seeds; shift ;;
esac
every=()
for source in tests/fuzz/*.cpp; do
  name=$(basename "$source" .cpp)
  [[ $name == replay || $name == seeds ]] || every+=("$name")
done
chosen=("${1:-}")
[[ ${1:-} != all ]] || chosen=("${every[@]}")
stop() { echo "fuzz: $1" >&2; exit 2; }
if [[ $mode != seeds ]]; then
  [[ " ${every[*]} " == *" ${chosen[0]} "* && -n ${chosen[0]} ]] ||
    stop "unknown target '${1:-}'; expected all or one of ${every[*]}"
  [[ $mode == keep || ${2:-} =~ ^[1-9][0-9]*$ ]] || stop "expected a number of seconds"
fi

scripts/build.sh fuzz
folder=$PWD/build/fuzz
corpus=$PWD/tests/fuzz/corpus
mkdir -p "$folder"/{findings,logs}
# Inputs limit memory, so 2 GiB at once is a finding. Leaks are checked once, at the end.
options=(-timeout=120 -rss_limit_mb=4096 -malloc_limit_mb=2048 -detect_leaks=0 -print_final_stats=1)
export UBSAN_OPTIONS=print_stacktrace=1
# With HDF5's free lists off, AddressSanitizer detects uses after free.
export HDF5_NO_FREE_LIST=1

run() {
  local target=$1 seconds=$2 log=$folder/logs/$1 status=0 begin=$SECONDS
  mkdir -p "$folder/corpus/$target"
  "$folder/bin/fuzz_$target" "${options[@]}" "-max_total_time=$seconds" \
    "-artifact_prefix=$folder/findings/$target." "$folder/corpus/$target" "$corpus/$target" >"$log" 2>&1 || status=$?
  local outcome=clean
  if (( status != 0 )); then
    outcome="FINDING: $(sed -n 's/^.*Test unit written to //p' "$log" | tail -n 1)"
    grep -m 3 -E '^finding:|^SUMMARY|ERROR: |runtime error|what\(\):' "$log" >&2 || true
  fi
  printf '%-16s %6d s %12s executions %6s edges %6d inputs  %s\n' "$target" $(( SECONDS - begin )) \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)" \
    "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -c 6-)" \
    "$(find "$folder/corpus/$target" -type f | wc -l)" "$outcome"
  return "$status"
}

# Stores the smallest set of inputs with the same coverage; omits the largest ones beyond 300 kB.
keep() {
  local target=$1 merged=$folder/merged/$1 bytes=0 file
  rm -rf "$merged"
  mkdir -p "$merged" "$folder/corpus/$target"
  "$folder/bin/fuzz_$target" "${options[@]}" -merge=1 "$merged" "$corpus/$target" "$folder/corpus/$target" \
    >"$folder/logs/$target.merge" 2>&1
  mkdir -p "$corpus/$target"
  # Keeps named files: seeds and findings.
  find "$corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
  local known
  known=" $(cd "$corpus/$target" && sha1sum -- * 2>/dev/null | cut -d ' ' -f 1 | tr '\n' ' ') "
  while read -r file; do  # named by their SHA-1
    [[ $known != *" ${file##*/} "* ]] || continue
    (( bytes += $(stat -c %s "$file") ))
    (( bytes <= 280000 )) || break
    cp "$file" "$corpus/$target/"
  done < <(find "$merged" -type f -printf '%s %p\n' | sort -n | cut -d ' ' -f 2)
  printf '%-16s %6d inputs, %d bytes\n' "$target" "$(find "$corpus/$target" -type f | wc -l)" \
    "$(find "$corpus/$target" -type f -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }')"
}

failed=0
case $mode in
  seeds) "$folder/bin/fuzz_seeds" "$corpus" ;;
  keep) for target in "${chosen[@]}"; do keep "$target"; done ;;
  run) for target in "${chosen[@]}"; do run "$target" "$2" || failed=1; done ;;
esac
exit "$failed"
