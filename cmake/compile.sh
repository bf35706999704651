#!/bin/sh
# Runs a compiler command through ccache: compile.sh CCACHE COMPILER ARGUMENTS...
# While it preprocesses a header that is to be precompiled, GCC reads an existing precompiled version of it. ccache
# would then return that old version, whatever the header contains now. So the output is removed first.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
CCACHE_SLOPPINESS=pch_defines,time_macros exec "$@"
