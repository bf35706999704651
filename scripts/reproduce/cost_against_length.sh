#!/usr/bin/env bash
# Time and memory of attention and of a training step against sequence length, for every mechanism.
#   scripts/reproduce/cost_against_length.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" cost_against_length "$@"
