#!/usr/bin/env bash
# Autoregressive models of pictures: held-out bits per dimension, and pictures generated per second.
#   scripts/reproduce/image_density.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" image_density "$@"
