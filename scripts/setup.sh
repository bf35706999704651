#!/usr/bin/env bash
# Installs the Debian packages that Furlong needs and that are missing.
#   scripts/setup.sh [run|test|models|reproduce|package]
#   run        to build and use the program (default): compiler, CMake, libraries
#   test       those of run and reproduce, and to test: GoogleTest, Open MPI, Slurm
#   models     to fetch trained models (scripts/fetch_models.sh): python3, pip
#   reproduce  for the figures of scripts/reproduce/: python3, h5py, matplotlib
#   package    those of run, and to make a Debian package (cpack): file, dpkg-dev
# If nothing is missing, returns immediately without network access.
# Exit status: 0 nothing is missing, or without root only ccache and lld; 1 the installation failed; 2 invalid
# arguments, not Linux on x86-64, or packages are missing and installing them needs root.
set -euo pipefail

run_packages=(
  g++ cmake ninja-build pkg-config git ca-certificates xz-utils
  libdnnl-dev libhdf5-dev libssl-dev libhwy-dev libyaml-cpp-dev libfmt-dev libspdlog-dev
  libcli11-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev liblzma-dev libzstd-dev libpng-dev
  libpcre2-dev libsentencepiece-dev libutf8proc-dev libgloo-dev
)
# Without these a build only takes longer.
optional_packages=(ccache lld)
# The launchers under which ranks are tested; the last two packages create networks that can be cut.
test_packages=(libgtest-dev libgmock-dev openmpi-bin slurm-wlm iproute2 util-linux)

model_packages=(python3 python3-pip)
reproduce_packages=(python3 python3-h5py python3-matplotlib)
package_packages=(file dpkg-dev)

if [[ $(uname -s) != Linux || $(uname -m) != x86_64 ]]; then
  echo "setup: Furlong needs Linux on x86-64; this is $(uname -s) on $(uname -m)" >&2
  exit 2
fi

case "${1:-run}" in
  models) wanted=("${model_packages[@]}") ;;
  reproduce) wanted=("${reproduce_packages[@]}") ;;
  package) wanted=("${run_packages[@]}" "${optional_packages[@]}" "${package_packages[@]}") ;;
  run) wanted=("${run_packages[@]}" "${optional_packages[@]}") ;;
  test) wanted=("${run_packages[@]}" "${optional_packages[@]}" "${test_packages[@]}" "${reproduce_packages[@]}") ;;
  -h|--help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "setup: unknown group '$1'; expected run, test, models, reproduce, package or --help" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system, so nothing is installed; install the equivalents of these packages of Debian 12:" \
    "${wanted[*]}" >&2
  exit 0
fi

installed=$(dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
missing=() required=false
for package in "${wanted[@]}"; do
  if [[ $'\n'"$installed"$'\n' != *$'\n'"$package installed"$'\n'* ]]; then
    missing+=("$package")
    [[ " ${optional_packages[*]} " == *" $package "* ]] || required=true
  fi
done
(( ${#missing[@]} )) || exit 0

if (( EUID == 0 )); then
  as_root=()
elif sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
elif ! $required; then
  echo "setup: without ${missing[*]} builds take longer; installing needs root" >&2
  exit 0
else
  echo "setup: packages are missing and installing them needs root; run this command, then this script again:" >&2
  echo "  sudo apt-get update && sudo apt-get install --yes --no-install-recommends ${missing[*]}" >&2
  exit 2
fi

# sudo drops the variables of a proxy.
proxies=()
for name in http_proxy https_proxy no_proxy; do
  [[ -z ${!name:-} ]] || proxies+=("$name=${!name}")
done
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${proxies[@]}" \
    apt-get --quiet --quiet -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@"
}
# A fresh image has no package lists and old lists have outdated versions, so a failed installation is repeated after an
# update.
install() { apt install --yes --no-install-recommends "${missing[@]}"; }

echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! install >"$log" 2>&1; then
  if ! { apt update && install; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: installation failed; check the network and that this is Debian 12 or 13; packages: ${missing[*]}" >&2
    exit 1
  fi
fi
