#!/usr/bin/env bash
# Runs fuzz targets with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer (clang; Debian package clang).
#   tests/fuzz/run.sh TARGET SECONDS       runs one target
#   tests/fuzz/run.sh each SECONDS         runs all targets, each for SECONDS
#   tests/fuzz/run.sh all SECONDS          runs all targets, together for SECONDS, in turns of two minutes, always the
#                                          one that has run least
#   tests/fuzz/run.sh --table              prints what all runs have done together
#   tests/fuzz/run.sh --keep TARGET|all    adds inputs of earlier runs that reach new code to tests/fuzz/corpus, and
#                                          their sums to tests/fuzz/runs.tsv
#   tests/fuzz/run.sh --seeds              writes the seed inputs to tests/fuzz/corpus
# Runs add up: a later one continues with the inputs of earlier ones. A run can be stopped at any time with Ctrl-C or
# SIGTERM. After a finding, `each` and `all` leave that target out, and its sums start at 0. The table shows, for each
# target, seconds of CPU time, executions, covered edges, inputs that reach new code (build/fuzz/corpus) and findings
# (build/fuzz/findings, with the output of the target). The sums are those of tests/fuzz/runs.tsv, which --keep wrote,
# and of build/fuzz/runs, the runs since then. build/fuzz/logs contains the output of the last turn.
# Exit status: 0 no finding, 1 a finding, 2 invalid arguments, 3 stopped by a signal.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "tests/fuzz/run.sh"; }
mode=run
case "${1:-}" in
  -h|--help) usage; exit 0 ;;
  --table) mode=table ;;
  --keep) mode=keep; shift ;;
  --seeds) mode=seeds ;;
esac
every=()
for source in tests/fuzz/*.cpp; do
  name=$(basename "$source" .cpp)
  [[ $name == replay || $name == *seeds ]] || every+=("$name")
done
chosen=("${1:-}")
[[ ! ${1:-} =~ ^(each|all)$ ]] || chosen=("${every[@]}")
stop() { echo "fuzz: $1" >&2; exit 2; }
if [[ $mode == run || $mode == keep ]]; then
  [[ " ${every[*]} " == *" ${chosen[0]} "* && -n ${chosen[0]} ]] ||
    stop "unknown target '${1:-}'; expected each, all or one of ${every[*]}"
  [[ $mode == keep || ${2:-} =~ ^[1-9][0-9]*$ ]] || stop "expected a number of seconds"
fi

folder=$PWD/build/fuzz
corpus=$PWD/tests/fuzz/corpus
mkdir -p "$folder"/{findings,logs,runs}

kept=$PWD/tests/fuzz/runs.tsv

# sums TARGET FILE...: sets `seconds`, `executions` and `edges`, by default those of all runs.
sums() {
  local target=$1
  shift
  (( $# )) || set -- "$kept" "$folder/runs/$target"
  read -r seconds executions edges < <(cat -- "$@" 2>/dev/null | awk -v target="$target" '
    $1 == target { seconds += $2; executions += $3; if ($4 > edges) edges = $4 }
    END { printf "%.0f %.0f %.0f\n", seconds, executions, edges }')  # mawk prints large numbers as 3e+09
}
# write_sums TARGET FILE: replaces the target's line.
write_sums() {
  { cat "$2" 2>/dev/null || true; } | awk -v target="$1" -v line="$1	$seconds	$executions	$edges" '
    $1 != target { print }
    END { print line }' | LC_ALL=C sort >"$folder/.sums"
  mv "$folder/.sums" "$2"
}
files_in() { find "$1" -type f "${@:2}" 2>/dev/null | wc -l; }
table() {
  local target seconds executions edges total_seconds=0 total_executions=0 total_findings=0 findings
  printf '%-16s %9s %13s %7s %7s %9s\n' target 'CPU s' executions edges inputs findings
  for target in "${every[@]}"; do
    sums "$target"
    findings=$(files_in "$folder/findings" -name "$target.*" ! -name '*.log')
    printf '%-16s %9d %13d %7d %7d %9d\n' "$target" "$seconds" "$executions" "$edges" \
      "$(files_in "$folder/corpus/$target")" "$findings"
    (( total_seconds += seconds, total_executions += executions, total_findings += findings, 1 ))
  done
  printf '%-16s %9d %13d %7s %7s %9d\n' all "$total_seconds" "$total_executions" '' '' "$total_findings"
}
if [[ $mode == table ]]; then table; exit 0; fi

exec 9>"$folder/lock"
flock -n 9 || stop "another run of the fuzz targets uses $folder"
scripts/build.sh fuzz 9>&-
# Inputs limit memory, so 2 GiB at once is a finding. Leaks are checked once, at the end.
# Slow inputs are none: wall time depends on what else runs on the machine.
options=(-timeout=120 -report_slow_units=120 -rss_limit_mb=4096 -malloc_limit_mb=2048 -detect_leaks=0
  -print_final_stats=1)
export UBSAN_OPTIONS=print_stacktrace=1
# With HDF5's free lists off, AddressSanitizer detects uses after free.
export HDF5_NO_FREE_LIST=1

# Sets `cpu` to the CPU time of this script's ended child processes, in seconds. A subshell has other children.
child_seconds() {
  times >"$folder/.times"
  cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; ++i) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] }
                       printf "%d", sum }' "$folder/.times")
}

stopped=0 running=
stop_run() {
  stopped=1
  [[ -z $running ]] || kill -TERM "$running" 2>/dev/null || true
}
trap stop_run TERM INT HUP

# run TARGET SECONDS: runs it once and adds to its sums. Returns 1 after a finding.
run() {
  local target=$1 log=$folder/logs/$1 begin=$SECONDS status=0 cpu before executed covered artifact outcome=clean
  local seconds executions edges
  mkdir -p "$folder/corpus/$target"
  child_seconds
  before=$cpu
  "$folder/bin/fuzz_$target" "${options[@]}" "-max_total_time=$2" \
    "-artifact_prefix=$folder/findings/$target." "$folder/corpus/$target" "$corpus/$target" >"$log" 2>&1 9>&- &
  running=$!
  while :; do  # a signal ends `wait` before the target has ended
    status=0
    wait "$running" || status=$?
    kill -0 "$running" 2>/dev/null || break
  done
  (( status != 72 )) || stopped=1  # libFuzzer's status after SIGINT or SIGTERM
  rm -rf /dev/shm/furlong_fuzz_"$running"_* "${TMPDIR:-/tmp}"/furlong_fuzz_"$running"_*
  running=
  child_seconds
  executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  covered=$(grep -a -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -c 6- || true)
  sums "$target" "$folder/runs/$target"
  (( seconds += cpu - before, executions += ${executed:-0}, edges = ${covered:-0} > edges ? covered : edges, 1 ))
  write_sums "$target" "$folder/runs/$target"
  find "$folder/findings" -name "$target.*" -empty -delete  # of confined child processes, whose crashes are expected
  artifact=$(sed -n 's/^.*Test unit written to //p' "$log" | tail -n 1)
  # The time limit is wall time, and the machine may have been busy. Ctrl-C must not end this check (setsid).
  if [[ $artifact == *.timeout-* ]] &&
    setsid "$folder/bin/fuzz_$target" "${options[@]}" "$artifact" >>"$log" 2>&1 9>&-; then
    rm "$artifact"
    artifact= status=0 outcome='clean, slow once'
  fi
  if [[ -s $artifact ]] || (( status != 0 && !stopped )); then
    outcome="FINDING: ${artifact:-status $status}"
    seconds=0 executions=0 edges=0
    write_sums "$target" "$folder/runs/$target"
    write_sums "$target" "$kept"
    cp "$log" "${artifact:-$folder/findings/$target.start}.log"
    grep -a -m 3 -E '^finding:|^SUMMARY|ERROR: |runtime error|what\(\):' "$log" >&2 || true
  elif (( stopped )); then
    outcome=stopped
  fi
  printf '%-16s %5d s %5d CPU s %10s executions %6s edges  %s\n' "$target" $(( SECONDS - begin )) $(( cpu - before )) \
    "${executed:-0}" "${covered:-0}" "$outcome"
  [[ $outcome != FINDING* ]]
}

# run_in_turns SECONDS TARGET...: always the target with the least CPU time so far.
run_in_turns() {
  local end=$(( SECONDS + $1 )) turn target least least_seconds seconds executions edges
  local -A left
  for target in "${@:2}"; do left[$target]=1; done
  while (( !stopped && SECONDS < end && ${#left[@]} > 0 )); do
    least=
    for target in "${!left[@]}"; do
      sums "$target"
      if [[ -z $least ]] || (( seconds < least_seconds )); then least=$target least_seconds=$seconds; fi
    done
    turn=$(( end - SECONDS ))
    run "$least" $(( turn < 120 && turn > 0 ? turn : 120 )) || { failed=1; unset "left[$least]"; }
  done
}

# Stores a small set of inputs that covers the same edges, without the largest ones beyond 280 kB, and the sums.
keep() {
  local target=$1 merged=$folder/merged/$1 bytes=0 file
  rm -rf "$merged"
  mkdir -p "$merged" "$folder/corpus/$target"
  "$folder/bin/fuzz_$target" "${options[@]}" -set_cover_merge=1 -use_counters=0 \
    "-artifact_prefix=$merged/../$target." "$merged" "$corpus/$target" "$folder/corpus/$target" \
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
  done < <(find "$merged" -type f -printf '%s %p\n' | sort -n | cut -d ' ' -f 2-)
  local seconds executions edges
  sums "$target"
  write_sums "$target" "$kept"
  rm -f "$folder/runs/$target"
  printf '%-16s %6d inputs, %d bytes\n' "$target" "$(files_in "$corpus/$target")" \
    "$(find "$corpus/$target" -type f -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }')"
}

failed=0
case $mode in
  seeds)
    ninja -C "$folder" fuzz_seeds >"$folder/build.log"
    "$folder/bin/fuzz_seeds" "$corpus"
    ;;
  keep) for target in "${chosen[@]}"; do keep "$target"; done ;;
  run)
    if [[ $1 == each ]]; then
      for target in "${chosen[@]}"; do run_in_turns "$2" "$target"; done
    else
      run_in_turns "$2" "${chosen[@]}"
    fi
    table
    (( failed || !stopped )) || exit 3
    ;;
esac
exit "$failed"
