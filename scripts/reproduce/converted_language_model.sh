#!/usr/bin/env bash
# Converts SmolLM2-135M into linear-time models, and compares them with controls trained on the same tokens.
#   scripts/reproduce/converted_language_model.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" converted_language_model "$@"
