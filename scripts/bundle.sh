#!/usr/bin/env bash
# Packs what a machine with a GPU and nothing else installed needs to check this build: one archive, unpacked and
# run anywhere.
#   scripts/bundle.sh [--build DIR] [--output FILE]
#   --build DIR    a build with tests and the CUDA engine (default: build/bundle)
#   --output FILE  the archive, .tar.xz or .tar.zst (default: furlong_bundle.tar.xz); at most 60 MB
# On the other machine:  tar -xf furlong_bundle.tar.xz && furlong_bundle/scripts/gpu_check.sh
# In it: the program and the tests (but test_formats and test_conversion, which use no GPU), stripped; the libraries
# that they need, but for glibc's and CUDA's, which are that machine's; configs, the tests' data, a token store,
# scripts/gpu_check.sh, benchmarks/gpu, and manifest.json. Needs binutils and xz (or zstd).
# Exit status: 0 done, 1 it cannot be made, 2 a mistake in the arguments.
set -euo pipefail

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
    *) fail "unknown argument $1; there are --build DIR, --output FILE and --help" 2 ;;
  esac
  shift
done

# Every program carries the same GPU code, some 50 MB behind the last one's: a window that reaches back so far keeps it
# once.
case "$output" in
  *.tar.xz) compress=(xz '--lzma2=preset=3,dict=128MiB') ;;
  *.tar.zst) compress=(zstd -q -15 -T0 --long=27) ;;
  *) fail "--output $output: expected a name that ends in .tar.xz or .tar.zst" 2 ;;
esac
most_bytes=60000000
programs=(furlong test_framework test_layers test_datasets test_communication test_trainers test_evaluation test_cli)

for tool in readelf objdump strip ldd "${compress[0]}"; do
  command -v "$tool" >/dev/null || fail "$tool is not there; packages binutils, xz-utils and zstd have what is needed"
done
for program in "${programs[@]}"; do
  [[ -x $build/bin/$program ]] || fail "$build/bin/$program is not there; build it first: scripts/build.sh bundle" 2
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/furlong_bundle
mkdir -p "$bundle"/{bin,lib,data,docs,scripts,benchmarks,tests/parity,tests/trainers/settings}

# Makes RUNPATH ($ORIGIN/../lib) of a program an RPATH, by its tag alone: RPATH holds for the libraries of libraries
# too, and so the programs start from anywhere without LD_LIBRARY_PATH, which would reach other machines' tools as well.
search_beside_program() {
  local start index
  start=$(readelf -d "$1" | sed -n 's/^Dynamic section at offset \(0x[0-9a-f]*\) contains.*/\1/p')
  index=$(readelf -d "$1" | grep '^ *0x' | sed -n '/(RUNPATH)/=')
  [[ $start && $index ]] || fail "$1 has no RUNPATH; was it linked by this project's CMake?"
  printf '\x0f' | dd of="$1" bs=1 seek=$(( start + 16 * (index - 1) )) conv=notrunc status=none
  readelf -d "$1" | grep -qF '(RPATH)              Library rpath: [$ORIGIN/../lib' || fail "$1: its RUNPATH could not be made an RPATH"
}

echo "bundle: programs and libraries" >&2
glibc='^(ld-linux.*|linux-vdso|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil|libanl)\.so'
for program in "${programs[@]}"; do
  strip --strip-all -o "$bundle/bin/$program" "$build/bin/$program"
  search_beside_program "$bundle/bin/$program"
  needed=$(ldd "$build/bin/$program")
  missing=$(sed -n 's/^\s*\(.*\) => not found.*/\1/p' <<<"$needed")
  [[ -z $missing ]] || fail "$program needs $missing, which was not found"
  while read -r name arrow path _; do
    [[ $arrow == '=>' ]] || continue  # the loader and what the kernel provides
    [[ ! $name =~ $glibc ]] || continue
    [[ ! $name =~ ^lib(cuda|cudart|cublas|nccl|nv) ]] || fail "$program is linked to $name; CUDA's libraries must be found at run time"
    [[ -e $bundle/lib/$name ]] || install -m 644 "$path" "$bundle/lib/$name"
  done <<<"$needed"
done
# As found from where they lie now: nothing but glibc from this system.
while read -r name arrow path _; do
  [[ $arrow != '=>' || $name =~ $glibc || $path == "$bundle"/* ]] || fail "$name would be taken from $path and not from the bundle"
done < <(env -u LD_LIBRARY_PATH ldd "$bundle/bin/furlong")

doctor=$("$bundle/bin/furlong" doctor --json) || fail "the packed program does not start"
# field NAME: the first value of that name in doctor's answer.
field() { sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}$/\1/p" <<<"$doctor" | head -n 1; }
toolkit=$(field toolkit)
[[ $toolkit ]] || fail "$build has no CUDA engine; build it where CUDA's toolkit is"

case "$toolkit" in  # the first branch of drivers that knows the toolkit's major version
  13.*) driver="an NVIDIA driver R580 or later" ;;
  12.*) driver="an NVIDIA driver R525 or later" ;;
  *) driver="an NVIDIA driver as new as CUDA $toolkit" ;;
esac

echo "bundle: data" >&2
cp -r "$root/configs" "$bundle/"
cp "$root/docs/config.md" "$root/docs/gpu.md" "$bundle/docs/"
cp -r "$root/tests/parity/goldens" "$bundle/tests/parity/"
cp -r "$root/tests/trainers/settings/broken_configs" "$bundle/tests/trainers/settings/"
cp "$root"/scripts/gpu_check*.sh "$bundle/scripts/"
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

# package FILE: the Debian package that it is from and its version; the same file may be recorded below / or /usr.
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
# One order of the files, the programs first and side by side.
tar -C "$work" --owner=0 --group=0 --numeric-owner -cf - \
  furlong_bundle/{bin,lib,LICENSE,benchmarks,configs,data,docs,furlong,manifest.json,scripts,tests} |
  "${compress[@]}" >"$work/archive"
bytes=$(stat --format %s "$work/archive")
(( bytes <= most_bytes )) ||
  fail "the archive would be $bytes bytes, and $most_bytes are the most; fewer CMAKE_CUDA_ARCHITECTURES make it smaller"
mv "$work/archive" "$output"
chmod 644 "$output"
echo "$output: $(( bytes / 1000000 )) MB, commit $(field commit), CUDA $toolkit, needs glibc ${needs_glibc#GLIBC_} or later and $driver"
