#!/usr/bin/env bash
# Kills a training run with kill -9 again and again, starts the same command each time, and compares with a run
# that nobody disturbed.
#   tests/kills.sh FURLONG [KILLS=20] [SEED]
# Most kills fall at random moments; every fourth waits, from a random moment on, until a checkpoint is being written.
# At the end metrics.jsonl has to be equal in all but tokens_per_second and memory_bytes, and the last checkpoint in
# every byte. Each restart has to cut metrics.jsonl back to the step that it resumes from. Prints a table.
# Exit status: 0 everything equal, 1 a difference, 2 a mistake in the arguments.
set -euo pipefail

furlong=$(realpath -e "${1:?which furlong: tests/kills.sh FURLONG [KILLS=20] [SEED]}")
kills=${2:-20}
seed=${3:-$(( $(date +%s) % 32768 ))}
[[ $kills =~ ^[1-9][0-9]*$ && $seed =~ ^[0-9]+$ ]] || { echo "kills: KILLS and SEED are numbers" >&2; exit 2; }
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RANDOM=$seed
export OMP_WAIT_POLICY=passive

work=$(mktemp -d)
running=
clean_up() {
  [[ -z $running ]] || kill -9 "$running" 2>/dev/null || true
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

# Everything that has a state is on: dropout, redrawn directions, averages, accumulation, validation with the best
# checkpoint kept.
cat >config.yaml <<'YAML'
run_directory: run
data:
  store: ../tokens.h5
  sequence_length: 128
  batch_size: 1
model:
  n_layers: 2
  d_model: 128
  n_heads: 4
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
train=("$furlong" train ../config.yaml)

now() { echo "${EPOCHREALTIME/./}"; }  # microseconds
seconds() { printf '%d.%03d' $(( $1 / 1000000 )) $(( $1 / 1000 % 1000 )); }
# random FROM TO: an integer in between, from 30 random bits.
random() { echo $(( $1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1) )); }
# The step of the last whole line of a metrics file, 0 without.
last_step() {
  [[ -f $1 ]] && grep -o '^{"step":[0-9]*,.*}$' "$1" | tail -n 1 | sed 's/^{"step":\([0-9]*\),.*/\1/' || echo 0
}
without_timings() { sed -E 's/"tokens_per_second":[^,}]*,?//; s/"memory_bytes":[^,}]*,?//' "$1"; }

mkdir undisturbed disturbed
begin=$(now)
(cd undisturbed && "${train[@]}" >out 2>err) || { cat undisturbed/err >&2; fail "the undisturbed run failed"; }
whole=$(( $(now) - begin ))
# What a start takes that has nothing left to do.
begin=$(now)
(cd undisturbed && "${train[@]}" >out 2>err)
start=$(( $(now) - begin ))
echo "undisturbed: $(last_step undisturbed/run/metrics.jsonl) steps in $(seconds $whole) s," \
  "of which a start takes $(seconds $start) s; seed $seed"

printf '%4s  %8s  %5s  %-22s  %s\n' kill seconds step moment "resumed at step"
run=disturbed/run
during_writes=0
number=0
# Kills that wait for a write and miss it (it was whole just then) are made up for, so that at least three fall
# into one.
wanted_writes=$(( kills < 3 ? kills : 3 ))
# Together the random lives make up about half of the run, so that it does not end before the last kill.
mean_life=$(( (whole - start) / 2 / kills ))
# Whether a checkpoint is being written, or was when the program was killed.
writes() {
  local partial
  for partial in "$run"/checkpoints/.step_*.partial; do
    [[ ! -e $partial || $'\n'$stale$'\n' == *$'\n'$partial$'\n'* ]] || return 0
  done
  return 1
}
while (( number < kills || during_writes < wanted_writes )); do
  (( ++number ))
  (( number <= 3 * kills )) || fail "only $during_writes kills fell into the writing of a checkpoint"
  rm -f metrics_before
  [[ ! -f $run/metrics.jsonl ]] || cp $run/metrics.jsonl metrics_before
  aim_at_write=$(( number % 4 == 0 || number > kills ))
  if (( aim_at_write )); then
    delay=$(random 0 $(( start + mean_life )))
  else
    delay=$(random 0 $(( start + 2 * mean_life )))
  fi

  # What an earlier kill has left until the next start removes it.
  stale=$(compgen -G "$run/checkpoints/.step_*.partial" || true)
  begin=$(now)
  (cd disturbed && exec "${train[@]}" >out 2>err) &
  running=$!
  sleep "$(seconds $delay)"
  if (( aim_at_write )); then
    # The path of a file that is being written: .*.h5.*.partial. No process is started in this loop, which has
    # milliseconds.
    while ! writes && kill -0 $running 2>/dev/null; do :; done
  fi
  kill -9 $running 2>/dev/null || true
  ended=0
  wait $running 2>/dev/null || ended=$?
  running=
  life=$(( $(now) - begin ))
  (( ended == 137 )) || {
    tail -n 3 disturbed/err >&2
    fail "start $number ended by itself with status $ended, before it was killed"
  }

  moment="between checkpoints"
  if writes; then
    moment="writing a checkpoint"
    (( ++during_writes ))
  fi
  resumed=$(sed -nE 's/^resuming at step ([0-9]+):.*/\1/p' disturbed/err | head -n 1)
  if [[ -z $resumed ]]; then
    if grep -q '^starting:' disturbed/err; then resumed=0; else moment="before training"; fi
  fi
  printf '%4d  %8s  %5d  %-22s  %s\n' \
    $number "$(seconds $life)" "$(last_step $run/metrics.jsonl)" "$moment" "${resumed:--}"

  # What this start left of the earlier metrics: the lines up to the step it resumed from, byte for byte, and after them
  # new steps only.
  if [[ -n $resumed && -f metrics_before ]]; then
    awk -v last="$resumed" '{ step = $0; sub(/^\{"step":/, "", step); if (step + 0 <= last && /}$/) print }' \
      metrics_before >expected_beginning
    cmp -s -n "$(stat -c %s expected_beginning)" expected_beginning $run/metrics.jsonl ||
      fail "start $number did not keep the metrics up to step $resumed"
    tail -c "+$(( $(stat -c %s expected_beginning) + 1 ))" $run/metrics.jsonl |
      awk -v last="$resumed" '!/}$/ { next } {
        step = $0; sub(/^\{"step":/, "", step); step += 0; train = /"split":"train"/
        if (train ? step != last + 1 : step != last) exit 1; last = step }' ||
      fail "start $number did not cut the metrics back to step $resumed"
  fi
done

(cd disturbed && "${train[@]}" >out 2>err) || { cat disturbed/err >&2; fail "the last start failed"; }
printf '%4s  %8s  %5d  %-22s  %s\n' - - "$(last_step $run/metrics.jsonl)" "ran to the end" \
  "$(sed -nE 's/^resuming at step ([0-9]+):.*/\1/p' disturbed/err)"

for name in undisturbed disturbed; do without_timings $name/run/metrics.jsonl >$name/metrics; done
cmp undisturbed/metrics disturbed/metrics || {
  diff undisturbed/metrics disturbed/metrics | head -n 6 >&2
  fail "the metrics differ"
}
[[ $(wc -l <undisturbed/metrics) -eq 500 ]] ||
  fail "450 training and 50 validation lines were expected, $(wc -l <undisturbed/metrics) found"

# A checkpoint carries the metrics, timings and all. Each is written once more from the checkpoint alone, beside metrics
# without timings, so that then every byte has to be equal: parameters, moments, averages, directions, counters.
last=$(printf 'step_%08d.h5' 450)
for name in undisturbed disturbed; do
  for checkpoint in "$last" best.h5; do
    copy=copies/$name/${checkpoint%.h5}
    mkdir -p "$copy/run/checkpoints"
    cp "$name/run/checkpoints/$checkpoint" "$copy/run/checkpoints/best.h5"
    step=450
    [[ $checkpoint != best.h5 ]] || step=$(sed -E 's/.*"step": ?([0-9]+).*/\1/' "$name/run/checkpoints/best.json")
    printf '{"step":%d,"validation_loss":1000,"file":"best.h5"}\n' "$step" >"$copy/run/checkpoints/best.json"
    cp $name/metrics "$copy/run/metrics.jsonl"
    sed "s/max_steps: 450/max_steps: $step/; s|store: .*|store: ../../../tokens.h5|" config.yaml >"$copy/config.yaml"
    (cd "$copy" && "$furlong" train config.yaml >out 2>err) || {
      cat "$copy/err" >&2
      fail "$name/$checkpoint cannot be read"
    }
    mv "$copy/run/checkpoints/$(printf 'step_%08d.h5' "$step")" "copies/$name.${checkpoint}"
  done
done
cmp "copies/undisturbed.$last" "copies/disturbed.$last" || fail "the last checkpoints differ"
cmp copies/undisturbed.best.h5 copies/disturbed.best.h5 || fail "the best checkpoints differ"
! compgen -G "$run/checkpoints/.*.partial" >/dev/null || fail "a partial file stayed"

echo "$number kills, $during_writes of them while a checkpoint was written: metrics and checkpoints are those of the" \
  "undisturbed run, bit for bit"
