#!/usr/bin/env bash
# Speed and memory of generation: recurrent state of linear attention against key-value cache of softmax.
#   scripts/reproduce/generation_cost.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" generation_cost "$@"
