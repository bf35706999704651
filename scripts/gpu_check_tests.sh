# Sourced by gpu_check.sh: runs test programs in parallel shards and classifies the outcome of each test. Reads bin,
# logs, current, programs, filter, shards and test_seconds; sets result, reason and fields.

# names_of PROGRAM FILTER: prints one test per line. A program that cannot list its tests is a failure.
names_of() {
  local all=$logs/$current.tests status=0
  local listed=$all.listed
  "$bin/$1" --gtest_list_tests "--gtest_filter=$2" >"$listed" 2>"$listed.errors" || status=$?
  if (( status )) && ! grep -q "^$1: cannot list" "$all.ended_badly"; then
    echo "$1: cannot list its tests (status $status): $(tail -n 1 "$listed.errors")" >>"$all.ended_badly"
  fi
  sed -n 's/ *# .*$//; /^[^ ]*\.$/{h;d;}; /^  [^ ]/{G; s/^  \(.*\)\n\(.*\)$/\2\1/p;}' "$listed"
}

# wait_for LOG PID...: waits until all have ended. Kills those whose log does not change for $test_seconds, and all at
# the time limit. Logs are LOG.0, LOG.1 and so on. A killed process leaves LOG.N.killed with the reason.
wait_for() {
  local log=$1 i alive now
  shift
  local pids=("$@")
  while :; do
    alive=0
    printf -v now '%(%s)T' -1
    for i in "${!pids[@]}"; do
      kill -0 "${pids[i]}" 2>/dev/null || continue
      alive=1
      if (( $(left) <= 5 )); then
        echo "time limit reached" >"$log.$i.killed"
      elif (( now - $(stat -c %Y "$log.$i" 2>/dev/null || echo "$now") > test_seconds )); then
        echo "no output for $test_seconds s" >"$log.$i.killed"
      else
        continue
      fi
      kill -KILL -- "-${pids[i]}" 2>/dev/null || kill -KILL "${pids[i]}" 2>/dev/null
    done
    (( alive )) || break
    sleep 0.2
  done
}

# start_shards LOG FILE PROGRAM [WRAPPER...]: distributes the tests listed in FILE to processes in turn; each writes
# LOG.N.
start_shards() {
  local log=$1 names=$2 program=$3 n i pids=()
  shift 3
  n=$(count "$names")
  n=$(( n < shards ? n : shards ))
  # A flag file, because thousands of names exceed a command line.
  printf -- '--gtest_filter=%s\n' "$(paste -s -d : "$names")" >"$log.flags"
  for (( i = 0; i < n; ++i )); do
    # Each runs in its own process group, so that killing it also kills what a test has started. A shell in the group
    # records the exit status.
    GTEST_TOTAL_SHARDS=$n GTEST_SHARD_INDEX=$i setsid bash -c '"$@"; echo $? >"$0"' "$log.$i.status" \
      "${@//%N/$i}" "$bin/$program" --gtest_color=no "--gtest_flagfile=$log.flags" </dev/null >"$log.$i" 2>&1 &
    pids+=($!)
    disown $!  # otherwise this shell reports each killed one
  done
  wait_for "$log" "${pids[@]}"
}

# outcomes LOG: sorts the processes' output into LOG.ok, .failed, .skipped, .begun.
outcomes() {
  local outcome mark
  for outcome in ok failed skipped begun; do
    case "$outcome" in
      ok) mark='\[       OK \]' ;;
      failed) mark='\[  FAILED  \]' ;;
      skipped) mark='\[  SKIPPED \]' ;;
      begun) mark='\[ RUN      \]' ;;
    esac
    # A result ends with its time. The summary at the end repeats tests without it.
    cat "$1".[0-9] "$1".[0-9][0-9] 2>/dev/null | sed -n "s/^.*$mark \([^ ,]*\).*$/\1 &/p" |
      { if [[ $outcome == begun ]]; then cat; else grep ' ms)$'; fi; } | cut -d ' ' -f 1 | sort -u >"$1.$outcome"
  done
}

# ended_badly LOG: prints processes that failed at exit although all their tests passed.
ended_badly() {
  local file status
  for file in "$1".*.status; do
    status=$(cat "$file" 2>/dev/null)
    [[ ${status:-0} == 0 ]] || grep -q '^\[  FAILED  \]' "${file%.status}" ||
      ! grep -q '^\[  PASSED  \]' "${file%.status}" ||
      echo "$(basename "${file%.status}"): status $status after its last test"
  done
}

# describe_failures [WRAPPER...]: sets failures. Each failed test is repeated alone, because another test of its process
# may have caused the failure. A test whose kernel failed (tests/harness/main.cpp: status 70) is repeated alone with
# CUDA_LAUNCH_BLOCKING=1, so that the error names the kernel's launch.
describe_failures() {
  local program failure alone also log all=$logs/$current.tests
  while read -r program failure && (( $(left) > 30 )); do
    alone=$logs/$current.alone
    echo "$failure" >"$alone.names"
    rm -f "$alone".0*
    start_shards "$alone" "$alone.names" "$program" "$@"
    outcomes "$alone"
    also=false
    [[ ! -s $alone.ok ]] || also=true
    failures+="${failures:+,}"$'\n'"  {\"test\": $(json_string "$failure"), \"passes_alone\": $also, \"output\": "
    # The end of its output alone; for a test that passes alone, its output among the others.
    if $also; then
      failures+="$(cat "$logs/$current.$program".[0-9]*.[0-9]* |
        sed -n "/^\[ RUN      \] ${failure//\//\\/}\$/,/ ms)\$/p" | head -n 40 | json_text)}"
    else
      failures+="$(tail_of "$alone.0" 40)}"
    fi
  done < <(head -n 40 "$all.failed")
  while read -r program failure; do
    log=$(grep -l -F "[ RUN      ] $failure" "$logs/$current.$program".[0-9]* 2>/dev/null |
      grep -E '\.[0-9]+\.[0-9]+$' | tail -n 1)
    also=$(cat "$log.killed" 2>/dev/null || echo "its process exited with status $(cat "$log.status" 2>/dev/null)")
    failures+="${failures:+,}"$'\n'"  {\"test\": $(json_string "$failure"), \"died\": $(json_string "$also")"
    failures+=", \"output\": $(tail_of "$log" 40)"
    if [[ $(cat "$log.status" 2>/dev/null) == 70 && $current == gpu_tests ]] && (( $(left) > 30 )); then
      alone=$logs/$current.alone
      echo "$failure" >"$alone.names"
      rm -f "$alone".0*
      CUDA_LAUNCH_BLOCKING=1 start_shards "$alone" "$alone.names" "$program" "$@"
      outcomes "$alone"
      also=false
      [[ ! -s $alone.ok ]] || also=true
      failures+=", \"passes_alone\": $also, \"output_alone\": $(tail_of "$alone.0" 40)"
    fi
    failures+="}"
  done < <(head -n 40 "$all.died")
}

# run_tests FILTER [WRAPPER...]: runs the tests of all programs; sets result, reason, fields. Tests that died with their
# process, or were not reached because of that, are listed; the others continue in new processes.
run_tests() {
  local wanted=$1 program n round log names total=0 skip_reasons failures=''
  shift
  local all=$logs/$current.tests
  rm -f "$all".*
  touch "$all".{passed,failed,skipped,died,unreached,ended_badly}
  for program in "${programs[@]}"; do
    names_of "$program" "$wanted" >"$all.$program.wanted"
    sort -o "$all.$program.wanted" "$all.$program.wanted"
    names=$all.$program.left
    if [[ $filter == '*' ]]; then
      cp "$all.$program.wanted" "$names"
    else
      names_of "$program" "$filter" | sort >"$all.allowed"
      comm -12 "$all.$program.wanted" "$all.allowed" >"$names"
    fi
    n=$(count "$names")
    (( total += n ))
    for (( round = 1; n > 0 && $(left) > 15; ++round )); do
      log=$logs/$current.$program.$round
      start_shards "$log" "$names" "$program" "$@"
      outcomes "$log"
      ended_badly "$log" >>"$all.ended_badly"
      cat "$log.ok" >>"$all.passed"
      cat "$log.skipped" >>"$all.skipped"
      sed "s/^/$program /" "$log.failed" >>"$all.failed"
      comm -23 "$log.begun" <(sort "$log.ok" "$log.failed" "$log.skipped") >"$log.died"
      # Tests that were running at the time limit have not failed.
      if (( $(left) > 15 )); then
        sed "s/^/$program /" "$log.died" >>"$all.died"
      else
        : >"$log.died"
      fi
      sort "$log.ok" "$log.failed" "$log.skipped" "$log.died" | comm -23 "$names" - >"$names.next"
      mv "$names.next" "$names"
      (( $(count "$names") < n )) || break
      n=$(count "$names")
    done
    cat "$names" >>"$all.unreached"
  done
  describe_failures "$@"
  skip_reasons=$(cat "$logs/$current".test_*.[0-9]* 2>/dev/null |
    grep -A 1 -E '^[^ []+:[0-9]+: Skipped$' | grep -v -E '^--$|: Skipped$' |
    sort | uniq -c | sort -rn | head -n 30 | sed 's/^ *//')

  local n_passed n_failed n_skipped n_unreached
  n_passed=$(count "$all.passed")
  n_failed=$(( $(count "$all.failed") + $(count "$all.died") + $(count "$all.ended_badly") ))
  tests_found=$(( ${tests_found:-0} + total ))
  n_skipped=$(count "$all.skipped") n_unreached=$(count "$all.unreached")
  fields=", \"tests\": $total, \"passed\": $n_passed, \"failed\": $n_failed, \"skipped\": $n_skipped"
  fields+=", \"not_reached\": $n_unreached"
  fields+=", \"failed_tests\": $({ cut -d ' ' -f 2- "$all.failed" "$all.died"; cat "$all.ended_badly"; } | json_list)"
  fields+=", \"skipped_tests\": $(json_list <"$all.skipped")"
  fields+=", \"skip_reasons\": $(sed '/^$/d' <<<"$skip_reasons" | json_list)"
  fields+=", \"not_reached_tests\": $(head -n 500 "$all.unreached" | json_list), \"failures\": [$failures]"
  reason="$n_passed passed, $n_failed failed, $n_skipped skipped, $n_unreached not reached"
  (( ! n_unreached )) || left_out+=("$current: $n_unreached tests")
  if (( n_failed )); then
    result=failed
  elif (( total == 0 )); then
    result=skipped reason="no test has this name"
  elif (( n_unreached )); then
    result=unfinished
  elif (( n_passed == 0 )); then
    result=skipped
  else
    result=passed
  fi
}
