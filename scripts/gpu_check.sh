#!/usr/bin/env bash
# Checks this build on a machine with an NVIDIA GPU and writes one report as JSON. Runs in an unpacked bundle
# (scripts/bundle.sh) or in the sources. Requires only the driver and, for matrix products, cuBLASLt.
#   scripts/gpu_check.sh [--output FILE] [--limit-seconds N] [--parts LIST] [--without-gpu] [options]
# Parts, in this order, so that --limit-seconds 600 gives the most:
#   gpu_tests         the tests that run on the GPU; errors that they compare with bounds go to the file
#                     gpu_tests.errors
#   quickstart        a short training on the GPU and on the CPU: losses within 1 %
#   python_benchmark  benchmarks/gpu/run.py: attention and steps of a model with 124M parameters next to PyTorch and
#                     fla, if python3 has them; at most half of the remaining time
#   benchmark         furlong bench attention
#   memcheck          the kernels of gpu_tests under compute-sanitizer, if it is found
#   racecheck         the same with the tool racecheck
#   other_tests       all other tests except those on the simulator
# Options:
#   --output FILE        the report (default: gpu_report.json); output of programs goes to the folder FILE_logs
#   --limit-seconds N    time limit; parts whose minimum time exceeds the remaining time are left out and listed
#   --parts LIST         only these parts, separated by commas
#   --without-gpu        runs without a GPU: the parts that can run on the CPU; tests on the GPU are replaced by one
#                        line that says so
#   --filter PATTERNS    only tests with these names (GoogleTest patterns separated by colons)
#   --shards N           test programs at once (default: cores, at most 16; fewer if the GPU's memory or compute mode
#                        requires it)
#   --test-seconds N     a test without output for N seconds fails (default: 300)
#   --steps N            steps of the quickstart (default: 60)
#   --build DIR          in the sources: the build with tests (default: build/release)
# Exit status: 0 no failure, 1 a failure, 2 invalid arguments or no usable GPU.
set -uo pipefail
export LC_ALL=C

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
stop() { echo "gpu_check: $1" >&2; exit "${2:-2}"; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
all_parts=(gpu_tests quickstart python_benchmark benchmark memcheck racecheck other_tests)
parts=("${all_parts[@]}")
output=gpu_report.json limit=0 without_gpu=false filter='*' build=$root/build/release test_seconds=300 steps=60
cores=$("$root/scripts/limits.sh" cores)
shards=$(( cores < 16 ? cores : 16 )) shards_given=false
number() { [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || stop "$1 \"$2\": expected an integer above 0"; }
while (( $# )); do
  option=$1
  case "$option" in
    --without-gpu) without_gpu=true; shift; continue ;;
    -h|--help) usage; exit 0 ;;
    --output|--limit-seconds|--parts|--filter|--shards|--test-seconds|--steps|--build)
      [[ -n ${2:-} ]] || stop "$option needs a value" ;;
    *) stop "unknown argument $option; see --help" ;;
  esac
  case "$option" in
    --output) output=$2 ;;
    --limit-seconds) number "$option" "$2"; limit=$2 ;;
    --parts) IFS=, read -r -a parts <<<"$2" ;;
    --filter) filter=$2 ;;
    --shards) number "$option" "$2"; shards=$2 shards_given=true ;;
    --test-seconds) number "$option" "$2"; test_seconds=$2 ;;
    --steps) number "$option" "$2"; steps=$2 ;;
    --build) build=$2 ;;
  esac
  shift 2
done
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] || stop "--parts: \"$part\" is unknown; expected ${all_parts[*]}"
done

if [[ -x $root/bin/furlong ]]; then
  bin=$root/bin
else
  [[ -x $build/bin/furlong ]] || stop "found neither $root/bin/furlong (a bundle) nor $build/bin/furlong (a build)"
  bin=$(cd "$build/bin" && pwd)
fi
furlong=$bin/furlong
[[ $output == *.json ]] || output+=.json
: >>"$output" || stop "cannot write $output"
output=$(cd "$(dirname "$output")" && pwd)/$(basename "$output")
logs=${output%.json}_logs
rm -rf "$logs"
mkdir -p "$logs" || stop "cannot create the folder $logs"
export FURLONG_TEST_SOURCES=$root FURLONG_TEST_PROGRAM=$furlong
# Several test programs share the cores, so a thread that waits for its team must sleep instead of spin.
export OMP_WAIT_POLICY=passive

# left: prints the seconds until the limit.
left() { if (( limit )); then echo $(( limit - SECONDS )); else echo 1000000; fi; }
# within SECONDS COMMAND...: runs the command for at most SECONDS and the remaining time.
within() {
  local most=$1 seconds
  shift
  seconds=$(left)
  (( seconds < most )) || seconds=$most
  timeout --kill-after=10 "$(( seconds > 1 ? seconds : 1 ))" "$@"
}
time_is_up() { (( $(left) <= 2 )); }

# Prints standard input as a JSON string.
json_text() {
  local text
  text=$(tr -d '\000-\010\013\014\016-\037' | { iconv -c -f UTF-8 -t UTF-8 2>/dev/null || true; })
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  printf '"%s"' "${text//$'\r'/}"
}
json_string() { printf '%s' "$1" | json_text; }
# Prints the lines of standard input as a JSON list of strings.
json_list() {
  local line list=''
  while IFS= read -r line; do list+="${list:+, }$(json_string "$line")"; done
  printf '[%s]' "$list"
}
# tail_of FILE [LINES]: prints the end of the file as a JSON string, with long lines truncated.
tail_of() { tail -n "${2:-25}" "$1" 2>/dev/null | cut -c -500 | json_text; }
count() { wc -l <"$1" | tr -d ' '; }

# ---- the machine -----------------------------------------------------------------------------------------------------
needed_glibc=$(sed -n 's/.*"needs_glibc": "\([0-9.]*\)".*/\1/p' "$root/manifest.json" 2>/dev/null)
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')
if [[ $needed_glibc && $glibc &&
  $(printf '%s\n' "$needed_glibc" "$glibc" | sort -V | head -n 1) != "$needed_glibc" ]]; then
  stop "this system has glibc $glibc, but the programs need $needed_glibc or later"
fi
doctor=$("$furlong" doctor --json 2>"$logs/doctor.err") ||
  stop "$furlong doctor --json exited with status $?: $(tail -n 5 "$logs/doctor.err")" 1
printf '%s\n' "$doctor" >"$logs/doctor.json"
# field NAME: the first value of that name in the output of doctor.
field() { sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}$/\1/p" <<<"$doctor" | head -n 1; }
cuda=$(field cuda)
if [[ $cuda != ok ]] && ! $without_gpu; then
  stop "no usable GPU: $cuda; --without-gpu runs the parts that can run on the CPU"
fi
[[ $cuda != ok ]] || without_gpu=false
# Keeps the driver loaded: without persistence mode it initializes the GPU, for seconds, whenever no process uses it.
if ! $without_gpu && command -v nvidia-smi >/dev/null; then
  nvidia-smi --loop=30 >/dev/null 2>&1 &
  keeper=$!
  disown
  trap 'kill "$keeper" 2>/dev/null' EXIT
fi
# query_gpu FIELDS: prints them for the first GPU of CUDA_VISIBLE_DEVICES; nothing for a MIG instance, of which
# nvidia-smi reports no such fields.
query_gpu() {
  local visible=${CUDA_VISIBLE_DEVICES:-}
  visible=${visible%%,*}
  nvidia-smi --format=csv,noheader --query-gpu="$1" ${visible:+--id="$visible"} 2>/dev/null
}
nvidia_smi=$(query_gpu name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit) || nvidia_smi=''
# first_device PATTERN: prints what PATTERN captures in doctor's list of devices, of the first device.
first_device() { sed -n "/\"devices\": \\[/,/\\]/s/$1/\1/p" <<<"$doctor" | head -n 1; }
device=$(first_device '.*"name": "\(.*\)".*')
# Each test program has its own context, which takes some hundred MiB, and tensors: 2 GiB are reserved for it. In the
# modes Exclusive_Process and Exclusive_Thread the GPU accepts one program at a time.
if ! $without_gpu && ! $shards_given; then
  mode=$(query_gpu compute_mode | head -n 1)
  free=$(first_device '.*"free_bytes": \([0-9]*\).*')
  if [[ $mode == Exclusive* ]]; then
    shards=1
  elif [[ $free ]] && (( free >> 31 < shards )); then
    shards=$(( free >> 32 ? free >> 31 : 1 ))
  fi
fi
system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
echo "gpu_check: furlong $(field version), commit $(field commit), on ${device:-a machine without a GPU} ($cuda)," \
  "$cores cores"

# ---- the report ------------------------------------------------------------------------------------------------------
report_parts='' failed_parts=() left_out=() targets_missed=''
# write_report RESULT: called after every part, so that an interrupted check leaves its results.
write_report() {
  local manifest=null
  [[ ! -e $root/manifest.json ]] || manifest=$(cat "$root/manifest.json")
  cat >"$output.tmp" <<END
{
"result": "$1",
"date": "$began",
"seconds": $SECONDS,
"version": $(json_string "$(field version)"),
"commit": $(json_string "$(field commit)"),
"device": $(json_string "$device"),
"cuda": $(json_string "$cuda"),
"nvidia_smi": $(json_string "$nvidia_smi"),
"system": $(json_string "$system"),
"kernel": $(json_string "$(uname -r)"), "glibc": $(json_string "$glibc"), "cores": $cores,
"arguments": $(json_string "$arguments"),
"targets_missed": ${targets_missed:-null},
"failed": $(printf '%s\n' "${failed_parts[@]}" | sed '/^$/d' | json_list),
"left_out": $(printf '%s\n' "${left_out[@]}" | sed '/^$/d' | json_list),
"parts": {$report_parts
},
"bundle": $manifest,
"doctor": $doctor
}
END
  mv "$output.tmp" "$output"
}
arguments="parts ${parts[*]}; filter $filter; shards $shards; limit $limit s; without_gpu $without_gpu"

# A part sets: result (passed, failed, skipped), reason, and further fields as JSON, each preceded by a comma.
result='' reason='' fields=''
# run_part NAME SECONDS COMMAND...: runs a part; leaves it out if fewer than SECONDS remain.
run_part() {
  local name=$1 least=$2 begin=$SECONDS
  shift 2
  [[ " ${parts[*]} " == *" $name "* ]] || return 0
  result='' reason='' fields=''
  if (( $(left) < least )); then
    result='left out' reason="$(left) s remain, but it takes at least $least s"
    left_out+=("$name")
  else
    echo "gpu_check: $name" >&2
    "$@"
  fi
  [[ $result != failed ]] || failed_parts+=("$name")
  report_parts+="${report_parts:+,}"$'\n'"\"$name\": {\"result\": \"$result\", \"reason\": $(json_string "$reason")"
  report_parts+=", \"seconds\": $(( SECONDS - begin ))$fields}"
  write_report unfinished
  printf '  %-17s %-9s %5d s  %s\n' "$name" "$result" $(( SECONDS - begin )) "$reason"
}

# ---- tests -----------------------------------------------------------------------------------------------------------
source "$root/scripts/gpu_check_tests.sh"

on_gpu='*/cuda*:*Cuda*:*/nccl:*/nccl_?'  # the last two: NCCL itself, not its stand-in
all_programs=(test_framework test_layers test_datasets test_communication test_trainers test_evaluation test_cli)
gpu_tests() {
  current=gpu_tests programs=("${all_programs[@]}")
  FURLONG_TEST_ERRORS=1 run_tests "$on_gpu"
  cat "$logs"/gpu_tests.test_*.[0-9]* 2>/dev/null | grep '^error ' | sort -u >"$logs/gpu_tests.errors"
  if ! $without_gpu && [[ $filter == '*' && $result != failed ]] &&
    ! grep -q '/cuda' "$logs/$current.tests.passed"; then
    result=failed reason="furlong doctor finds a GPU, but no test ran on it; $reason"
  fi
}
# Their programs see no GPU: these tests expect the output of the CPU, and start two ranks on one machine.
other_tests() {
  current=other_tests programs=("${all_programs[@]}")
  CUDA_VISIBLE_DEVICES='' run_tests "*-*/simulated*:$on_gpu"
}

# ---- compute-sanitizer -----------------------------------------------------------------------------------------------
find_sanitizer() {
  local place toolkit=${CUDA_HOME:-/usr/local/cuda}
  for place in compute-sanitizer \
    {"$toolkit",/usr/local/cuda{,-*},/opt/cuda}/{bin,compute-sanitizer}/compute-sanitizer; do
    if command -v "$place" 2>/dev/null; then return; fi
  done
}

# sanitize TOOL: runs only tests of kernels, not of whole trainings.
sanitize() {
  local tool=$1 sanitizer log errors=0 processes=0 found='' before options=()
  local variables=(FURLONG_TEST_ASK_HERE=1)  # the tool may not support CUDA in a forked child
  sanitizer=$(find_sanitizer)
  if $without_gpu; then result=skipped reason="no GPU"; return; fi
  if [[ -z $sanitizer ]]; then result=skipped reason="compute-sanitizer is missing"; return; fi
  current=$tool programs=(test_framework test_layers)
  options=(--tool "$tool")
  if [[ $tool == memcheck ]]; then
    # Each tensor is a separate allocation: otherwise a write beyond one tensor would land undetected in the next.
    variables+=(FURLONG_SEPARATE_TENSORS=1)
    [[ $("$sanitizer" --help 2>/dev/null) != *--padding* ]] || options+=(--padding 512)
  fi
  # Errors returned by CUDA functions are not reported: some tests exhaust memory on purpose.
  run_tests '*/cuda*' env "${variables[@]}" "$sanitizer" "${options[@]}" --report-api-errors no --print-limit 20 \
    --log-file "$logs/$tool.%N.%p.sanitizer"
  before=$result
  for log in "$logs/$tool".*.sanitizer; do
    [[ -e $log ]] || continue
    (( ++processes ))
    found=$(sed -n -e 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' \
      -e 's/.*RACECHECK SUMMARY: .*(\([0-9]*\) error.*/\1/p' "$log" | tail -n 1)
    # A process that was stopped has written its errors, but no summary.
    [[ $found ]] ||
      found=$(grep -c -E '^=+ (Invalid|Misaligned|Out-of-range|Illegal|Malloc|Stack overflow|Error:)' "$log")
    (( errors += ${found:-0} ))
    if (( ${found:-0} )); then fields+=", \"$(basename "$log")\": $(head -n 60 "$log" | cut -c -300 | json_text)"; fi
  done
  fields+=", \"sanitizer\": $(json_string "$("$sanitizer" --version 2>/dev/null | tail -n 1)")"
  fields+=", \"settings\": $(json_string "${variables[*]} ${options[*]}")"
  fields+=", \"processes\": $processes, \"errors\": $errors"
  reason="$errors errors in $processes processes; $reason"
  if grep -q -s 'Device not supported' "$logs/$tool".*.sanitizer "$logs/$tool".test_*; then
    result=skipped reason="compute-sanitizer reports: Device not supported"
  elif (( errors )) || [[ $before == failed ]]; then
    result=failed
  elif [[ $before != unfinished ]] && ! grep -q -s SUMMARY "$logs/$tool".*.sanitizer; then
    result=failed reason="compute-sanitizer wrote no summary; $reason"
  fi
}

# ---- training --------------------------------------------------------------------------------------------------------
token_store() {
  store=$root/data/quickstart.h5
  [[ ! -e $store ]] || return 0
  store=$logs/quickstart.h5
  if [[ -e $root/data/kjv.txt ]]; then
    head -c 1048576 "$root/data/kjv.txt" >"$logs/text"
  else
    cat "$root/README.md" "$root"/docs/*.md >"$logs/text"
  fi
  "$furlong" prepare text "$logs/text" --split-by span --split train:0.85,validation:0.05,test:0.1 --output "$store" \
    >"$logs/prepare.log" 2>&1
}

# train NAME DEVICE DTYPE: writes the losses to $logs/NAME.losses, one per line, the validation's last.
train() {
  within 3600 "$furlong" train "$root/configs/quickstart.yaml" --set "data.dataset=$store" --set "device=$2" \
    --set "model.dtype=$3" --set "trainer.max_steps=$steps" \
    --set "schedule.warmup_steps=$(( steps < 60 ? steps : 60 ))" --set log.every=5 --set trainer.validate_every=0 \
    --set trainer.sample_tokens=0 --set trainer.sample_prompt=null --run-dir "$logs/$1" >"$logs/$1.log" 2>&1 &&
    sed -n 's/.*"loss":\([-0-9.e+]*\).*/\1/p' "$logs/$1/metrics.jsonl" >"$logs/$1.losses" &&
    rm -rf "$logs/$1/checkpoints" && [[ -s $logs/$1.losses ]]
}
# Prints the last logged training speed, when allocation and, on a GPU, recording are done.
speed() { sed -n '/"split":"train"/s/.*"tokens_per_second":\([0-9.]*\).*/\1/p' "$logs/$1/metrics.jsonl" | tail -n 1; }

quickstart() {
  local pair first second name difference runs='' pairs=("cuda bfloat16 cpu bfloat16" "cuda float32 cpu float32")
  # Without a GPU the comparison itself is tested with two dtypes, whose losses differ about as little.
  ! $without_gpu || pairs=("cpu bfloat16 cpu float32")
  result=passed
  token_store || {
    result=failed reason="cannot make the tokenized dataset"
    fields=", \"output\": $(tail_of "$logs/prepare.log")"
    return
  }
  for pair in "${pairs[@]}"; do
    read -r -a pair <<<"$pair"
    first=quickstart_${pair[0]}_${pair[1]} second=quickstart_${pair[2]}_${pair[3]}
    for name in "$first ${pair[0]} ${pair[1]}" "$second ${pair[2]} ${pair[3]}"; do
      # shellcheck disable=SC2086  # three words
      train $name && continue
      if time_is_up; then
        result=unfinished reason="time limit reached"
        left_out+=("quickstart: ${name%% *}")
        return
      fi
      result=failed reason="the training ${name%% *} failed"
      fields=", \"output\": $(tail_of "$logs/${name%% *}.log")"
      return
    done
    # The greatest relative difference, or "inf" if one run has fewer losses or a loss is not a number.
    difference=$(paste "$logs/$first.losses" "$logs/$second.losses" | awk '
      NF != 2 || $1 + 0 <= 0 || $2 + 0 <= 0 { bad = 1 }
      { d = $1 / ($2 + 0 ? $2 : 1) - 1; d = d < 0 ? -d : d; if (d > most) most = d }
      END { if (bad || !NR) print "inf"; else printf "%.6f", most }')
    runs+="${runs:+, }{\"runs\": [\"$first\", \"$second\"], \"greatest_difference\": \"$difference\""
    runs+=", \"losses\": [[$(paste -s -d , "$logs/$first.losses")], [$(paste -s -d , "$logs/$second.losses")]]"
    runs+=", \"tokens_per_second\": [$(speed "$first"), $(speed "$second")]}"
    reason+="${reason:+; }$first and ${second#quickstart_}: losses differ by at most $difference"
    [[ $difference != inf ]] && awk -v d="$difference" 'BEGIN { exit !(d <= 0.01) }' || result=failed
  done
  fields=", \"steps\": $steps, \"allowed_difference\": 0.01, \"comparisons\": [$runs]"
}

# ---- benchmarks ------------------------------------------------------------------------------------------------------
benchmark() {
  local cases case direction name i=0 failed=0 shown='' target=cuda
  cases=(
    "--mechanism linear --feature-map elu1 --head-dim 64 --lengths 2048,8192,32768,131072"
    "--mechanism linear --feature-map favor_positive --features 256 --head-dim 64 --lengths 2048,8192,32768,131072"
    "--mechanism softmax --head-dim 64 --lengths 2048,8192,32768"
    "--mechanism linear --feature-map elu1 --head-dim 128 --lengths 2048,8192,32768,131072"
  )
  local shape=(--heads 16 --batch 2 --dtype bfloat16 --repeats 10)
  if $without_gpu; then
    target=cpu shape=(--heads 2 --repeats 3)
    cases=("--mechanism linear,softmax --feature-map elu1 --head-dim 64 --lengths 256,512")
  fi
  result=passed
  for case in "${cases[@]}"; do
    for direction in '' --train; do
      (( $(left) > 20 )) || { left_out+=("benchmark: $case $direction"); result=unfinished; continue; }
      name=benchmark_$(( ++i ))
      # shellcheck disable=SC2086  # words
      if within 180 "$furlong" bench attention --device $target $case $direction "${shape[@]}" \
        --json-file "$logs/$name.json" >"$logs/$name.log" 2>&1; then
        shown+="${shown:+,}"$'\n'"{\"arguments\": \"$case $direction ${shape[*]}\", "
        shown+="\"answer\": $(cat "$logs/$name.json")}"
      elif time_is_up; then
        left_out+=("benchmark: $case $direction") result=unfinished
      else
        failed=1 reason="furlong bench attention --device $target $case $direction failed"
        shown+="${shown:+,}"$'\n'"{\"arguments\": \"$case $direction ${shape[*]}\", "
        shown+="\"failed\": $(tail_of "$logs/$name.log")}"
      fi
    done
  done
  (( ! failed )) || result=failed
  [[ $reason ]] || reason="$i runs"
  fields=", \"device\": \"$target\", \"runs\": [$shown]"
}

python_benchmark() {
  local status=0 seconds log=$logs/python_benchmark
  if ! command -v python3 >/dev/null; then result=skipped reason="python3 is missing"; return; fi
  if ! python3 -c 'import torch' 2>"$log.log"; then
    result=skipped reason="python3 has no PyTorch: $(tail -n 1 "$log.log")"
    return
  fi
  if $without_gpu; then result=skipped reason="no GPU"; return; fi
  if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>"$log.log"; then
    result=skipped reason="PyTorch finds no GPU: torch.cuda.is_available() is false"
    return
  fi
  seconds=$(( $(left) / 2 ))
  seconds=$(( seconds < 600 ? seconds : 600 ))
  within 700 python3 "$root/benchmarks/gpu/run.py" --furlong "$furlong" --seconds "$seconds" --output "$log.json" \
    >"$log.log" 2>&1 || status=$?
  if (( status )) && time_is_up; then
    result=unfinished reason="time limit reached"
    left_out+=(python_benchmark)
  elif (( status )) || [[ ! -s $log.json ]]; then
    result=failed reason="benchmarks/gpu/run.py exited with status $status"
    fields=", \"output\": $(tail_of "$log.log" 40)"
  else
    result=passed reason=$(tail -n 1 "$log.log")
  fi
  [[ -s $log.json ]] || return
  fields+=", \"answer\": $(cat "$log.json")"
  # A missed target does not fail the check but must be visible.
  targets_missed=$(sed -n 's/^ *"targets_missed": \([0-9]*\).*/\1/p' "$log.json" | head -n 1)
}

# Minimum seconds of each part on a machine with one GPU and 16 cores.
run_part gpu_tests 20 gpu_tests
run_part quickstart 20 quickstart
run_part python_benchmark 120 python_benchmark
run_part benchmark 30 benchmark
run_part memcheck 60 sanitize memcheck
run_part racecheck 60 sanitize racecheck
run_part other_tests 30 other_tests

# Without a GPU there are no tests on one, but there are others.
if [[ ${tests_found:-} == 0 && ($filter != '*' || " ${parts[*]} " == *' other_tests '*) ]]; then
  failed_parts+=("no test has a name that --filter '$filter' selects")
fi
if (( ${#failed_parts[@]} )); then outcome=failed; else outcome=passed; fi
write_report "$outcome"
if (( ${#left_out[@]} )); then
  echo "left out because of the time limit:"
  printf '  %s\n' "${left_out[@]}"
fi
[[ -z $targets_missed ]] || echo "targets missed: $targets_missed (see the part python_benchmark)"
echo "$outcome in $SECONDS s${failed_parts[*]:+: ${failed_parts[*]}}; report: $output"
[[ $outcome == passed ]]
