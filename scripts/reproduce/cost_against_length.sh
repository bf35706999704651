#!/usr/bin/env bash
# Time and memory of a training step (or of attention alone) against sequence length, by mechanism.
#   scripts/reproduce/cost_against_length.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" cost_against_length "$@"
