#!/usr/bin/env bash
# Runs one reproduction: scripts/reproduce/start.sh NAME [OPTION...]. Called by the scripts named like the pages in
# docs/results/. Installs missing packages and builds the program if needed.
# Environment variables: FURLONG, a program to use instead of building one; PYTHON, an interpreter with h5py and
# matplotlib.
# Exit status: that of the reproduction, or of the step that failed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=$1
python=${PYTHON:-python3}
if ! "$python" -c 'import h5py, matplotlib' 2>/dev/null; then
  "$root/scripts/setup.sh" reproduce
  python=/usr/bin/python3
fi
if [[ -z ${FURLONG:-} && " $* " != *" --help "* ]]; then
  "$root/scripts/setup.sh" run
  "$root/scripts/build.sh" release
  export FURLONG=$root/build/release/bin/furlong
fi
exec "$python" -B "$root/scripts/reproduce/$name.py" "${@:2}"
