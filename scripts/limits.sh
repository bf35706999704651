#!/usr/bin/env bash
# Prints how much of this machine a build or a test may use, as one number.
#   scripts/limits.sh cores|memory_mib
#   cores       the cores available to this process (nproc), at most the CPU quota of its cgroups, rounded up
#   memory_mib  the machine's memory in MiB, at most the limit of its cgroups
# Containers and Slurm jobs set the limits of cgroups, of version 1 or 2. For tests, FURLONG_LIMITS_ROOT is a folder
# that replaces / in the paths of /proc and /sys.
# Exit status: 0 success, 2 invalid arguments.
set -euo pipefail
root=${FURLONG_LIMITS_ROOT:-}

# cgroups_of CONTROLLER: prints the folders of this process's cgroups, its own first. A container sees its own as the
# root, and may not see the path that /proc names.
cgroups_of() {
  local controllers path base
  [[ -r $root/proc/self/cgroup ]] || return 0
  while IFS=: read -r _ controllers path; do
    case ",$controllers," in
      ,,) base=$root/sys/fs/cgroup ;;  # version 2
      *",$1,"*) base=$root/sys/fs/cgroup/$1 ;;
      *) continue ;;
    esac
    while [[ $path == /?* ]]; do
      echo "$base$path"
      path=${path%/*}
    done
    echo "$base"
  done <"$root/proc/self/cgroup"
}

case "${1:-}" in
  cores)
    found=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # nproc reads both
    while read -r folder; do
      read -r quota period <<<"$(cat "$folder/cpu.max" 2>/dev/null ||
        paste "$folder/cpu.cfs_quota_us" "$folder/cpu.cfs_period_us" 2>/dev/null)"
      [[ $quota =~ ^[1-9] && $period =~ ^[1-9] ]] || continue  # max or -1: no quota
      limit=$(( (quota + period - 1) / period ))
      found=$(( limit < found ? limit : found ))
    done < <(cgroups_of cpu) ;;
  memory_mib)
    found=$(awk '/^MemTotal:/ { print int($2 / 1024) }' "$root/proc/meminfo")
    while read -r folder; do
      bytes=$(cat "$folder/memory.max" 2>/dev/null || cat "$folder/memory.limit_in_bytes" 2>/dev/null || true)
      [[ $bytes =~ ^[1-9] ]] || continue
      limit=$(( bytes / 1048576 ))
      found=$(( limit < found ? limit : found ))
    done < <(cgroups_of memory) ;;
  *) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
echo "$found"
