#!/usr/bin/env bash
# Repeatedly kills furlong with kill -9, restarts the same command, and compares the results with an undisturbed run.
#   tests/kills.sh FURLONG [KILLS=20] [SEED]   (KILLS: at least 20)
# A fifth of the kills hits a training in two ranks (all or one of them), a tenth convert and export, and the others a
# training in one rank. A training takes up to 20 kills; then it finishes and another one starts. Most kills happen at
# random times. Every fourth kill of a training waits, from a random time on, until a checkpoint is being written; every
# second kill of convert and export waits until a file is. At the end of each training metrics.jsonl must be equal
# except for tokens_per_second and memory_bytes, and the last and the best checkpoint must be bitwise equal. Each
# restart must cut metrics.jsonl back to the step that it resumes from. After a kill of convert or export each file is
# the old or the new one; after the next start it is the new one, bit for bit. Prints a line for each kill, and a table.
# Exit status: 0 all equal, 1 a difference, 2 invalid arguments.
set -euo pipefail
export LC_ALL=C  # decimal points in EPOCHREALTIME

furlong=$(realpath -e "${1:?no program given: tests/kills.sh FURLONG [KILLS=20] [SEED]}")
kills=${2:-20}
seed=${3:-$(( $(date +%s) % 32768 ))}
[[ $kills =~ ^[1-9][0-9]*$ && $seed =~ ^[0-9]+$ ]] || { echo "kills: KILLS and SEED must be integers" >&2; exit 2; }
(( kills >= 20 )) || { echo "kills: KILLS is $kills; expected at least 20, so that some hit a checkpoint" >&2; exit 2; }
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=
for one in python3 /usr/bin/python3; do
  [[ -n $python ]] || ! "$one" -c 'import h5py' 2>/dev/null || python=$one
done
[[ -n $python ]] || { echo "kills: python3 with h5py is missing; scripts/setup.sh test installs it" >&2; exit 2; }
RANDOM=$seed
export OMP_WAIT_POLICY=passive

work=$(mktemp -d)
running=
# Each command runs in its own session, whose processes are killed together.
kill_all() { kill -9 -- "-$running" 2>/dev/null || true; }
clean_up() {
  [[ -z $running ]] || kill_all
  rm -rf "$work"
}
trap clean_up EXIT
cd "$work"

fail() {
  echo "kills: $1 (seed $seed)" >&2
  exit 1
}

cat "$source"/LICENSE "$source"/README.md "$source"/trainers/*/*.cpp "$source"/datasets/*.cpp >text.txt
"$furlong" prepare text text.txt --output tokens.h5 >prepared

# Every feature with a state is on: dropout, redrawn random projections, EMA, accumulation, and validation that keeps
# the best checkpoint.
cat >config.yaml <<'YAML'
run_directory: run
data:
  dataset: ../tokens.h5
  sequence_length: 128
  batch_size: 2
model:
  n_layers: 2
  d_model: 32
  n_heads: 2
  dropout: 0.1
  short_convolution: 4
  attention:
    mechanism: linear
    redraw_every: 7
optimizer:
  ema_decay: 0.95
schedule:
  warmup_steps: 20
trainer:
  max_steps: 450
  validate_every: 9
  validation_batches: 2
  gradient_accumulation: 2
checkpoint:
  every: 6
log:
  every: 1
YAML

now() { echo "${EPOCHREALTIME/./}"; }  # microseconds
seconds() { printf '%d.%03d' $(( $1 / 1000000 )) $(( $1 / 1000 % 1000 )); }
# random FROM TO: prints a random integer in this range, from 30 random bits.
random() { echo $(( $1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1) )); }
# Prints the step of the last complete line of a metrics file; 0 without lines.
last_step() {
  [[ -f $1 ]] && grep -o '^{"step":[0-9]*,.*}$' "$1" | tail -n 1 | sed 's/^{"step":\([0-9]*\),.*/\1/' || echo 0
}
without_timings() { sed -E 's/"tokens_per_second":[^,}]*,?//; s/"memory_bytes":[^,}]*,?//' "$1"; }
# start FOLDER COMMAND...: starts the command in its own session and sets `running` to its process id.
start() {
  local folder=$1
  shift
  (cd "$folder" && exec setsid "$@" >out 2>err) &
  running=$!
}

# ---- trainings -------------------------------------------------------------------------------------------------------
# undisturbed RANKS: runs the training in undisturbed/ and sets `train`, `whole` (its duration) and `begins` (the
# duration of a start with nothing left to do).
undisturbed() {
  train=("$furlong" train ../config.yaml)
  (( $1 == 1 )) || train=("$furlong" launch --processes "$1" train ../config.yaml)
  rm -rf undisturbed
  mkdir undisturbed
  local begin
  begin=$(now)
  (cd undisturbed && "${train[@]}" >out 2>err) || { cat undisturbed/err >&2; fail "the undisturbed run failed"; }
  whole=$(( $(now) - begin ))
  begin=$(now)
  (cd undisturbed && "${train[@]}" >out 2>err)
  begins=$(( $(now) - begin ))
  without_timings undisturbed/run/metrics.jsonl >undisturbed/metrics
  [[ $(wc -l <undisturbed/metrics) -eq 500 ]] ||
    fail "expected 450 training and 50 validation lines, found $(wc -l <undisturbed/metrics)"
  echo "undisturbed, $1 rank(s): 450 steps in $(seconds $whole) s, including $(seconds $begins) s to start"
}

run=disturbed/run
# Returns whether a checkpoint is being written, or was when the program was killed.
writes() {
  local partial
  for partial in "$run"/checkpoints/.step_*.partial; do
    [[ ! -e $partial || $'\n'$stale$'\n' == *$'\n'$partial$'\n'* ]] || return 0
  done
  return 1
}

# Checks the metrics after a restart: the lines up to the step it resumed from are bitwise unchanged, followed only by
# new steps.
check_metrics() {
  local resumed=$1
  [[ -n $resumed && -f metrics_before ]] || return 0
  awk -v last="$resumed" '{ step = $0; sub(/^\{"step":/, "", step); if (step + 0 <= last && /}$/) print }' \
    metrics_before >expected_beginning
  cmp -s -n "$(stat -c %s expected_beginning)" expected_beginning $run/metrics.jsonl ||
    fail "kill $number: the restart did not keep the metrics up to step $resumed"
  tail -c "+$(( $(stat -c %s expected_beginning) + 1 ))" $run/metrics.jsonl |
    awk -v last="$resumed" '!/}$/ { next } {
      step = $0; sub(/^\{"step":/, "", step); step += 0; train = /"split":"train"/
      if (train ? step != last + 1 : step != last) exit 1; last = step }' ||
    fail "kill $number: the restart did not cut the metrics back to step $resumed"
}

# kill_job RANKS: kills all ranks, or, if there are several, every third time only one; then the others end by
# themselves.
kill_job() {
  local rank
  if (( $1 > 1 && number % 3 == 0 )) && rank=$(pgrep -P "$running" | shuf -n 1 --random-source=<(yes "$number")) &&
    [[ -n $rank ]]; then
    kill -9 "$rank" 2>/dev/null || true
    one_rank=1
  else
    kill_all
  fi
}

# disturb RANKS KILLS: runs one training from start to end with this number of kills.
disturb() {
  local processes=$1 wanted=$2 begin life delay moment resumed ended aim_at_write lives_before=$number one_rank
  # The random times between kills add up to about half of the run, so it does not finish before the last kill.
  local mean_life=$(( (whole - begins) / 2 / wanted ))
  rm -rf disturbed
  mkdir disturbed
  while (( number < lives_before + wanted )); do
    (( ++number ))
    rm -f metrics_before
    [[ ! -f $run/metrics.jsonl ]] || cp $run/metrics.jsonl metrics_before
    aim_at_write=$(( number % 4 == 0 )) one_rank=0
    delay=$(random 0 $(( begins + (aim_at_write ? 1 : 2) * mean_life )))
    # Partial files of an earlier kill, which the next start removes.
    stale=$(compgen -G "$run/checkpoints/.step_*.partial" || true)
    begin=$(now)
    start disturbed "${train[@]}"
    sleep "$(seconds $delay)"
    if (( aim_at_write )); then
      # The path of a partial file: .*.h5.*.partial. This loop starts no process because it has only milliseconds.
      while ! writes && kill -0 $running 2>/dev/null; do :; done
    fi
    kill_job "$processes"
    ended=0
    wait $running 2>/dev/null || ended=$?
    kill_all
    life=$(( $(now) - begin ))
    running=
    (( ended == 137 || one_rank && ended != 0 )) || {
      # A run that exits by itself has finished: there is nothing left to kill.
      (( ended == 0 && $(last_step $run/metrics.jsonl) == 450 )) ||
        { tail -n 3 disturbed/err >&2; fail "kill $number: the restart exited by itself with status $ended"; }
      (( --number ))
      (( ++early_ends ))
      break
    }
    moment="between checkpoints"
    if writes; then
      moment="writing a checkpoint"
      (( ++during_writes ))
    fi
    (( !one_rank )) || moment+=", one rank"
    resumed=$(sed -nE 's/^resuming at step ([0-9]+):.*/\1/p' disturbed/err | head -n 1)
    if [[ -z $resumed ]]; then
      if grep -q 'starting:' disturbed/err; then resumed=0; else moment="before training"; (( ++before_training )); fi
    fi
    printf '%4d  %8s  %5d  %-32s  %s\n' \
      $number "$(seconds $life)" "$(last_step $run/metrics.jsonl)" "$moment" "${resumed:--}"
    check_metrics "$resumed"
  done
  (cd disturbed && "${train[@]}" >out 2>err) || { cat disturbed/err >&2; fail "the last restart failed"; }
  without_timings $run/metrics.jsonl >disturbed/metrics
  cmp undisturbed/metrics disturbed/metrics || {
    diff undisturbed/metrics disturbed/metrics | head -n 6 >&2
    fail "the metrics differ"
  }
  compare_checkpoints
  ! compgen -G "$run/checkpoints/.*.partial" >/dev/null || fail "a partial file is left"
}

# Every byte of both checkpoints must be equal but for their metrics, which contain timings: parameters, moments, EMA,
# random projections, counters.
compare_checkpoints() {
  local name
  for name in "$(printf 'step_%08d.h5' 450)" best.h5; do
    "$python" -B "$source/tests/compare_checkpoints.py" {undisturbed,disturbed}/run/checkpoints/"$name" ||
      fail "the checkpoints $name differ"
  done
}

rows=() all_during_writes=0
# trainings RANKS KILLS: runs trainings until this number of kills is reached, and adds a row to the table.
trainings() {
  local processes=$1 wanted=$2 share runs=0
  (( wanted > 0 )) || return 0
  during_writes=0 before_training=0 early_ends=0 number=0
  undisturbed "$processes"
  printf '%4s  %8s  %5s  %-32s  %s\n' kill seconds step moment "resumed at step"
  while (( number < wanted )); do
    share=$(( wanted - number < 20 ? wanted - number : 20 ))
    disturb "$processes" "$share"
    (( ++runs ))
    (( runs <= 3 * wanted )) || fail "trainings finish before they are killed"
  done
  (( all_during_writes += during_writes, 1 ))
  rows+=("$(printf 'train, %d process(es)|%d|%d|%d|%d trainings equal' \
    "$processes" "$number" "$during_writes" "$before_training" "$runs")")
}

# ---- convert and export ----------------------------------------------------------------------------------------------
# Checks the files of model/ and converted.h5: each is old, new, or missing together with config.json.
check_files() {
  local file name
  for file in files/converted.h5 files/model/*; do
    name=${file#files/}
    cmp -s "$file" "old/$name" || cmp -s "$file" "new/$name" || fail "kill $number: $name is neither old nor new"
  done
  [[ -f files/converted.h5 ]] || fail "kill $number: converted.h5 is gone"
  local compare=(diff -rq -x '.*.partial' files/model)
  [[ ! -f files/model/config.json ]] || "${compare[@]}" old/model >/dev/null ||
    "${compare[@]}" new/model >/dev/null || fail "kill $number: model is neither the old nor the new one"
}

# Returns whether a file is being written, or was when the command was killed. From the start of a command on, an empty
# partial file holds the lock of the output.
is_partial() {
  local partial
  for partial in files/.*.partial files/model/.*.partial; do [[ ! -s $partial ]] || return 0; done
  return 1
}

commands() {
  local wanted=$1 command delay ended begin ends=0 checkpoints=undisturbed/run/checkpoints
  local -A whole between=([convert]=0 [export]=0) hits=([convert]=0 [export]=0)
  (( wanted > 0 )) || return 0
  local convert=("$furlong" convert ../step.h5 converted.h5 --attention favor_positive --force)
  local export=("$furlong" export ../step.h5 model --force)
  cp "$(printf '%s\n' $checkpoints/step_*.h5 | head -n 1)" earlier.h5
  cp "$checkpoints/$(printf 'step_%08d.h5' 450)" step.h5
  rm -rf old new files
  mkdir old
  (cd old && "$furlong" convert ../earlier.h5 converted.h5 && "$furlong" export ../earlier.h5 model) >out
  cp -r old new
  for command in convert export; do
    local -n arguments=$command
    begin=$(now)
    (cd new && "${arguments[@]}") >out
    whole[$command]=$(( $(now) - begin ))
  done
  local name
  for name in converted.h5 model/model.safetensors; do
    ! cmp -s old/$name new/$name || fail "$name does not differ"
  done
  number=0
  while (( number < wanted )); do
    (( ++number ))
    rm -rf files
    cp -r old files
    # Half of the kills of each command are aimed at its writing.
    command=convert
    (( number % 4 < 2 )) || { command="export"; (cd files && "${convert[@]}") >out; }
    local -n arguments=$command
    delay=$(random 0 "${whole[$command]}")
    start files "${arguments[@]}"
    if (( number % 2 == 0 )); then
      while ! is_partial && kill -0 $running 2>/dev/null; do :; done
    else
      sleep "$(seconds $delay)"
    fi
    kill_all
    ended=0
    wait $running 2>/dev/null || ended=$?
    running=
    if (( ended == 0 )); then
      (( --number, ++ends ))
      (( ends <= 10 * wanted )) || fail "no kill hits $command"
      continue
    fi
    (( ended == 137 )) || { cat files/err >&2; fail "$command exited with status $ended"; }
    (( ++hits[$command] ))
    rm -f files/out files/err
    ! is_partial || (( ++between[$command] ))
    check_files
    (cd files && "${convert[@]}" && "${export[@]}") >out || fail "kill $number: the restart of $command fails"
    diff -r files new || fail "kill $number: files differ after the restart of $command"
  done
  for command in convert export; do
    # At least one kill in ten must happen while a file is written; a few kills may all miss.
    (( hits[$command] < 10 || 10 * between[$command] >= hits[$command] )) ||
      fail "only ${between[$command]} of ${hits[$command]} kills of $command happened while a file was written"
    rows+=("$command|${hits[$command]}|${between[$command]}|-|files equal")
  done
}

echo "seed $seed"
two=$(( kills / 5 )) files=$(( kills / 10 ))
trainings 2 "$two"
trainings 1 $(( kills - two - files ))
# At least one kill in twenty must happen while a checkpoint is written.
(( 20 * all_during_writes >= kills - files )) ||
  fail "only $all_during_writes of $(( kills - files )) kills happened while a checkpoint was written"
commands "$files"
printf '\n%-24s %6s %14s %16s  %s\n' command kills "while writing" "before training" outcome
for row in "${rows[@]}"; do
  IFS='|' read -r name count during before outcome <<<"$row"
  printf '%-24s %6s %14s %16s  %s\n' "$name" "$count" "$during" "$before" "$outcome"
done
echo "$kills kills: metrics, checkpoints and files equal those of undisturbed runs, bit for bit"
