#!/usr/bin/env bash
# Error of random-feature attention against the number of features, next to uniform attention.
#   scripts/reproduce/estimator_error.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" estimator_error "$@"
