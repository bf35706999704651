#!/usr/bin/env bash
# ListOps and Pathfinder of Long Range Arena at desk size: accuracy of each attention.
#   scripts/reproduce/long_range_arena.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" long_range_arena "$@"
