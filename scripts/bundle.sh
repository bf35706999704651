#!/usr/bin/env bash
# Packs this build for a machine with nothing else installed, mostly one with a GPU: one archive that is unpacked and
# run anywhere.
#   scripts/bundle.sh [--build DIR] [--output FILE]
#   --build DIR    a build with tests, and with the CUDA engine unless for CPUs alone (default: build/bundle)
#   --output FILE  the archive, .tar.xz or .tar.zst (default: furlong_bundle.tar.xz); at most 60 MB
# On the other machine:  tar -xf furlong_bundle.tar.xz && furlong_bundle/scripts/gpu_check.sh
# Contents: the program and the tests (except test_formats and test_conversion, which use no GPU), stripped; their
# libraries, except glibc's and CUDA's, which the other machine provides; configs, test data, a tokenized dataset,
# scripts/gpu_check.sh, benchmarks/gpu, and manifest.json. Requires binutils and xz (or zstd).
# Exit status: 0 success, 1 the bundle cannot be made, 2 invalid arguments.
set -euo pipefail
export LC_ALL=C  # the output of readelf is translated

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() { echo "bundle: $1" >&2; exit "${2:-1}"; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/bundle
output=furlong_bundle.tar.xz
while (( $# )); do
  case "$1" in
    --build) [[ -n ${2:-} ]] || fail "--build needs a folder" 2
             build=$2; shift ;;
    --build=*) build=${1#*=} ;;
    --output) [[ -n ${2:-} ]] || fail "--output needs a file" 2
              output=$2; shift ;;
    --output=*) output=${1#*=} ;;
    -h|--help) usage; exit 0 ;;
    *) fail "unknown argument $1; expected --build DIR, --output FILE or --help" 2 ;;
  esac
  shift
done

# All programs contain the same GPU code, about 50 MB apart. A window of that size stores it once.
case "$output" in
  *.tar.xz) compress=(xz '--lzma2=preset=3,dict=128MiB') ;;
  *.tar.zst) compress=(zstd -q -15 -T0 --long=27) ;;
  *) fail "--output $output: expected a name that ends in .tar.xz or .tar.zst" 2 ;;
esac
most_bytes=60000000
programs=(furlong test_framework test_layers test_datasets test_communication test_trainers test_evaluation test_cli)

for tool in readelf objdump strip ldd "${compress[0]}"; do
  command -v "$tool" >/dev/null || fail "$tool is missing; install the packages binutils, xz-utils and zstd"
done
for program in "${programs[@]}"; do
  [[ -x $build/bin/$program ]] || fail "$build/bin/$program is missing; build it first: scripts/build.sh bundle" 2
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/furlong_bundle
mkdir -p "$bundle"/{bin,lib,data,docs,scripts,benchmarks,tests/parity,tests/trainers/settings}

# Turns the RUNPATH ($ORIGIN/../lib) of a program into an RPATH by changing its tag. RPATH also applies to the libraries
# of libraries, so programs start from anywhere without LD_LIBRARY_PATH, which would also affect other tools.
search_beside_program() {
  local start index
  start=$(readelf -d "$1" | sed -n 's/^Dynamic section at offset \(0x[0-9a-f]*\) contains.*/\1/p')
  index=$(readelf -d "$1" | grep '^ *0x' | sed -n '/(RUNPATH)/=')
  [[ $start && $index ]] || fail "$1 has no RUNPATH; link it with this project's CMake"
  printf '\x0f' | dd of="$1" bs=1 seek=$(( start + 16 * (index - 1) )) conv=notrunc status=none
  readelf -d "$1" | grep -F '(RPATH)              Library rpath: [$ORIGIN/../lib' >/dev/null ||
    fail "$1: cannot turn its RUNPATH into an RPATH"
}

echo "bundle: programs and libraries" >&2
glibc='^(ld-linux.*|linux-vdso|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil|libanl)\.so'
for program in "${programs[@]}"; do
  strip --strip-all -o "$bundle/bin/$program" "$build/bin/$program"
  search_beside_program "$bundle/bin/$program"
  needed=$(ldd "$build/bin/$program")
  missing=$(sed -n 's/^\s*\(.*\) => not found.*/\1/p' <<<"$needed")
  [[ -z $missing ]] || fail "$program needs $missing, which is missing"
  while read -r name arrow path _; do
    [[ $arrow == '=>' ]] || continue  # the loader and the kernel's vDSO
    [[ ! $name =~ $glibc ]] || continue
    [[ ! $name =~ ^lib(cuda|cudart|cublas|nccl|nv) ]] ||
      fail "$program is linked to $name; CUDA's libraries must be found at run time"
    [[ -e $bundle/lib/$name ]] || install -m 644 "$path" "$bundle/lib/$name"
  done <<<"$needed"
done
# Checks the packed libraries from their new place: only glibc may come from this system.
for program in "${programs[@]}"; do
  while read -r name arrow path _; do
    [[ $arrow != '=>' || $name =~ $glibc || $path == "$bundle"/* ]] ||
      fail "$program would load $name from $path instead of the bundle"
  done < <(env -u LD_LIBRARY_PATH ldd "$bundle/bin/$program")
done

doctor=$("$bundle/bin/furlong" doctor --json) || fail "the packed program does not start"
# field NAME: the first value of that name in the output of doctor.
field() { sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}$/\1/p" <<<"$doctor" | head -n 1; }
toolkit=$(field toolkit)

case "$toolkit" in  # first driver branch that supports the toolkit's major version
  '') driver='' ;;
  13.*) driver=" and an NVIDIA driver R580 or later" ;;
  12.*) driver=" and an NVIDIA driver R525 or later" ;;
  *) driver=" and an NVIDIA driver as new as CUDA $toolkit" ;;
esac

echo "bundle: data" >&2
cp -r "$root/configs" "$bundle/"
cp "$root/docs/commands.md" "$root/docs/config.md" "$root/docs/gpu.md" "$bundle/docs/"
cp -r "$root/tests/parity/goldens" "$bundle/tests/parity/"
cp -r "$root/tests/trainers/settings/broken_configs" "$bundle/tests/trainers/settings/"
cp "$root"/scripts/{gpu_check*,limits}.sh "$bundle/scripts/"
mkdir -p "$bundle/benchmarks/gpu"
cp "$root"/benchmarks/gpu/*.py "$bundle/benchmarks/gpu/"
cp "$root/LICENSE" "$bundle/"
ln -s bin/furlong "$bundle/furlong"
if [[ -e $root/data/kjv.txt ]]; then
  text="the first MiB of the King James Bible"
  head -c 1048576 "$root/data/kjv.txt" >"$work/text"
else
  text="the documents of this project"
  cat "$root/README.md" "$root"/docs/*.md >"$work/text"
fi
(cd "$work" && "$bundle/bin/furlong" prepare text text --split-by span --split train:0.85,validation:0.05,test:0.1 \
  --output "$bundle/data/quickstart.h5" >/dev/null)

# package FILE: the file's Debian package and version; the file may be recorded below / or /usr.
package() {
  local file name
  file=$(readlink -f "$1")
  for name in "$file" "${file#/usr}" "/usr$file"; do
    name=$(dpkg-query --search "$name" 2>/dev/null | head -n 1 | sed 's/: .*//') || continue
    [[ -z $name ]] || { dpkg-query --show --showformat '${Package} ${Version}' "$name"; return; }
  done
  echo "unknown"
}

libraries=''
while read -r name arrow path _; do
  [[ $arrow == '=>' && -e $bundle/lib/$name ]] || continue
  libraries+="${libraries:+,}"$'\n'"    \"$name\": \"$(package "$path")\""
done < <(for program in "${programs[@]}"; do ldd "$build/bin/$program"; done | sort -u -k 1,1)
needs_glibc=$(objdump -T "$bundle"/bin/* "$bundle"/lib/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)

cat >"$bundle/manifest.json" <<END
{
  "version": "$(field version)",
  "commit": "$(field commit)",
  "made": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "cuda_toolkit": "$toolkit",
  "architectures": "$(field architectures)",
  "needs_glibc": "${needs_glibc#GLIBC_}",
  "token_store": "$text",
  "libraries": {$libraries
  }
}
END

echo "bundle: compressing $(du -sm "$bundle" | cut -f 1) MB" >&2
# A fixed order of files: programs first and adjacent.
tar -C "$work" --owner=0 --group=0 --numeric-owner -cf - \
  furlong_bundle/{bin,lib,LICENSE,benchmarks,configs,data,docs,furlong,manifest.json,scripts,tests} |
  "${compress[@]}" >"$work/archive"
bytes=$(stat --format %s "$work/archive")
(( bytes <= most_bytes )) ||
  fail "the archive has $bytes bytes, expected at most $most_bytes; set fewer CMAKE_CUDA_ARCHITECTURES"
mv "$work/archive" "$output"
chmod 644 "$output"
needs="glibc ${needs_glibc#GLIBC_} or later$driver"
echo "$output: $(( bytes / 1000000 )) MB, commit $(field commit), ${toolkit:+CUDA $toolkit, }needs $needs"
