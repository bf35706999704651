#!/bin/sh
# Runs a compiler command through ccache: compile.sh CCACHE COMPILER ARGUMENTS...
# While it preprocesses a header that is to be precompiled, GCC reads an existing precompiled version of it. ccache
# would then return that old version, whatever the header contains now. So the output is removed first.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
# ccache fails where it cannot write, for example without a home.
folder=$("$1" --get-config cache_dir 2>/dev/null)
{ mkdir -p "$folder/tmp" && [ -w "$folder/tmp" ]; } 2>/dev/null || export CCACHE_DISABLE=1
CCACHE_SLOPPINESS=pch_defines,time_macros exec "$@"
