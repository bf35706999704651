#!/usr/bin/env bash
# Time and memory of attention alone, and of a training step, against sequence length, by mechanism.
#   scripts/reproduce/cost_against_length.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" cost_against_length "$@"
