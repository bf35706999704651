#!/usr/bin/env bash
# Installs missing packages, builds Furlong if needed, and runs it with the given arguments. Returns its exit status.
#   scripts/run.sh train configs/quickstart.yaml
# Comment lines in a config for train, finetune or evaluate are instructions to this script:
#   # run.sh: fetch-model NAME                    before: fetch a trained model (scripts/fetch_models.sh) if missing
#   # run.sh: prepare NAME                        before: fetch and prepare the tokenized dataset if it is missing
#   # run.sh: train-first CONFIG                  before: train the config that this one starts from, unless finished
#   # run.sh: compare-compressors TEXT            after training: held-out bits per byte next to gzip -9 and xz -9
#   # run.sh: next LINE                           after that: what to try next; RUN is the run directory
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export FURLONG=$root/build/release/bin/furlong

command=${1:-}
if [[ $command == '' || $command == -h || $command == --help ]]; then
  echo "scripts/run.sh installs missing packages, builds furlong if needed, and runs it with the given arguments. With"
  echo "a config of configs/ it fetches and prepares the data first: scripts/run.sh train configs/quickstart.yaml"
  [[ -n $command ]] || exit 2  # before minutes of building
  echo
fi
config=''
if [[ $command == train || $command == finetune || $command == evaluate ]]; then
  for argument in "${@:2}"; do
    if [[ $argument == *.y*ml && -f $argument ]]; then config=$argument; break; fi
  done
fi
# Prints the words after `# run.sh: KEYWORD` in the config, or nothing.
instruction() { [[ -z $config ]] || sed -n "s/^# run\.sh: $1 //p" "$config"; }

"$root/scripts/setup.sh" run
[[ -z $(instruction fetch-model) ]] || "$root/scripts/setup.sh" models
"$root/scripts/build.sh" release
[[ -n $config ]] || exec "$FURLONG" "$@"

# Sets `status` to the exit status of the process `training`, regardless of signals in between.
wait_for_training() {
  status=0
  wait "$training" || status=$?
  while kill -0 "$training" 2>/dev/null; do  # a signal ended the wait, not the training
    status=0
    wait "$training" || status=$?
  done
}

model=$(instruction fetch-model)
[[ -z $model ]] || "$root/scripts/fetch_models.sh" "$model" >&2
data_set=$(instruction prepare)
[[ -z $data_set ]] || "$root/scripts/prepare_data.sh" "$data_set"
first=$(instruction train-first)
if [[ -n $first && $command == finetune ]]; then
  # It receives the signals sent to this script, and does not outlive it.
  setpriv --pdeathsig TERM "$root/scripts/run.sh" train "$first" >&2 &
  training=$!
  trap 'kill -TERM $training 2>/dev/null' INT TERM USR1 HUP
  wait_for_training
  trap - INT TERM USR1 HUP
  (( status == 0 )) || exit "$status"
fi
text=$(instruction compare-compressors)
[[ $command == train && -n $text ]] || exec "$FURLONG" "$@"

# Prints the run directory: --run-dir, or the config's value with the --set options.
run_directory() {
  local settings=() directory=''
  while (( $# )); do
    case "$1" in
      --run-dir) directory=${2:-}; shift ;;
      --run-dir=*) directory=${1#*=} ;;
      --set) settings+=(--set "${2:-}"); shift ;;
      --set=*) settings+=("$1") ;;
    esac
    shift || true
  done
  [[ -n $directory ]] ||
    directory=$("$FURLONG" config show "$config" "${settings[@]}" 2>/dev/null |
      sed -n 's/^run_directory: *"\{0,1\}\([^"#]*[^"# ]\).*/\1/p')
  [[ -n $directory ]] || directory=runs/$(basename "${config%.y*ml}")
  echo "$directory"
}

# Compressors and model are compared on the same bytes: the test split, which is the end of the text.
compare_compressors() {
  local report bits bytes run=$1
  local -x LC_ALL=C  # otherwise printf and awk may read and write decimal commas
  report=$("$FURLONG" evaluate "$run" --split test --json)
  field() { sed -n "s/.*\"$1\": *\([0-9.eE+-]*\).*/\1/p" <<<"$report"; }
  bits=$(field bits_per_byte) bytes=$(field bytes)
  [[ -n $bits && -n $bytes ]] || { echo "run: furlong evaluate reports no bits per byte of $run" >&2; exit 1; }
  [[ $text != data/* ]] || text=${FURLONG_DATA:-data}/${text#data/}
  [[ -r $text ]] || { echo "run: $text is missing: no comparison with compressors" >&2; return 0; }
  compressed() { tail -c "$bytes" "$text" | "$@" | wc -c | awk -v bytes="$bytes" '{ printf "%.3f", $1 * 8 / bytes }'; }
  printf '\nheld-out bits per byte (last %s bytes of %s):\n' "$bytes" "$text"
  printf '  %-16s %.3f\n' "${run##*/}" "$bits"
  printf '  %-16s %s\n' 'gzip -9' "$(compressed gzip -9)" 'xz -9' "$(compressed xz -9)"
}

# Training runs in its own process group and gets each signal once from here. Ctrl-C or kill on this script therefore
# saves and ends it in order. If the script itself is killed, training does not outlive it.
set -m
setpriv --pdeathsig KILL "$FURLONG" "$@" &
training=$!
for signal in INT TERM USR1; do
  # shellcheck disable=SC2064
  trap "kill -$signal $training 2>/dev/null" "$signal"
done
trap 'kill -TERM $training 2>/dev/null' HUP
wait_for_training
(( status == 0 )) || exit "$status"
if [[ " $* " == *" --json "* ]]; then exec >&2; fi  # standard output contains only the program's JSON
directory=$(run_directory "${@:2}")
compare_compressors "$directory"
next=$(instruction next)
if [[ -n $next ]]; then
  printf '\nnext:\n'
  sed 's/^/  /' <<<"${next//RUN/"$directory"}"
fi
