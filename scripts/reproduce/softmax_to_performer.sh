#!/usr/bin/env bash
# Trains a softmax model, converts it into a Performer, and compares training with and without attention transfer.
#   scripts/reproduce/softmax_to_performer.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" softmax_to_performer "$@"
