#!/usr/bin/env bash
# Fetches the training data of the configs in configs/ from Debian packages, which are unpacked but not installed.
#   scripts/fetch_data.sh [kjv|ecoli|proteins|all_proteins|antibodies|english|fashion|manual_pages|all] [--cache DIR]
# DIR defaults to $FURLONG_DATA or `data`. Complete files are kept. Needs no root.
#   kjv           DIR/kjv.txt          the King James Bible (packages bible-kjv, bible-kjv-text)
#   ecoli         DIR/ecoli.fa         the genome of E. coli 536 (package bowtie-examples)
#   proteins      DIR/proteins.fa      16,598 dolphin proteins (package plast-example)
#   all_proteins  DIR/all_proteins.fa  these and 20,500 of UniProt (packages plast-example, mmseqs2-examples)
#   antibodies    DIR/antibodies.fa    18,231 heavy chains, translated (packages r-cran-alakazam, r-cran-tigger;
#                                      needs python3)
#   english       DIR/english.txt      An Anarchist FAQ, a book of English prose (package anarchism)
#   fashion       DIR/fashion_*.idx    70,000 pictures of clothes with labels (package dataset-fashion-mnist)
#   manual_pages  DIR/manual_pages.tar 1,577 manual pages, in folders by section: man1, man2, man3, man8 (packages
#                                      manpages, manpages-dev, coreutils, netpbm, iproute2, lvm2; only on Debian 12)
# Exit status: 0 success, 1 the download or the machine failed, 2 invalid arguments.
set -euo pipefail

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() { echo "fetch_data.sh: $1" >&2; exit "${2:-1}"; }

names=()
fashion=(fashion_train fashion_train_labels fashion_test fashion_test_labels)
cache=${FURLONG_DATA:-data}
while (( $# )); do
  case "$1" in
    kjv|ecoli|proteins|all_proteins|antibodies|english|manual_pages) names+=("$1") ;;
    fashion) names+=("${fashion[@]}") ;;
    all) names+=(kjv ecoli proteins all_proteins antibodies english "${fashion[@]}" manual_pages) ;;
    --cache) [[ -n ${2:-} ]] || fail "--cache needs a folder" 2
             cache=$2; shift ;;
    --cache=*) cache=${1#*=} ;;
    -h|--help) usage; exit 0 ;;
    *)
      fail "unknown argument \"$1\"; expected kjv, ecoli, proteins, all_proteins, antibodies, english, fashion,\
 manual_pages, all, --cache" 2
      ;;
  esac
  shift
done
(( ${#names[@]} )) || names=(kjv ecoli proteins)

kjv=(kjv.txt 4404412 cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d)
ecoli=(ecoli.fa 5009545 cdd0874c881adf3e1819d22b7e49cffa3c761b0793a1b1f10b1c074eeadb4789)
proteins=(proteins.fa 11950358 40991f36a36202dad8dc954d87112f663e8f73a8e6a58733a90214f1b44f4a67)
all_proteins=(all_proteins.fa 23690090 d8d15bad5cc3a32084e413f817488b4bf1fd3e4d9698d21a133e4716d860f3a9)
english=(english.txt 11656464 67c0f7f58cb8d2050d48cb77b1e95cb1c7c9490f0edebfca929f55fc1efde6d9)
fashion_train=(fashion_train.idx 47040016 c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888)
fashion_train_labels=(fashion_train_labels.idx 60008 bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9)
fashion_test=(fashion_test.idx 7840016 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b)
fashion_test_labels=(fashion_test_labels.idx 10008 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34)
manual_pages=(manual_pages.tar 9523200 4952fcdb3bc0e9f8b2404904490fc8c2a1520d16f406dd7a74ccdf4fb457b93c)
antibodies=(antibodies.fa 2652323 175671ab7963e243df690b08caa56f147403d2f140cfd8f23ac2647140c9d1f6)

# whole FILE BYTES SHA256
whole() {
  [[ -f $1 && $(stat --dereference --format %s "$1") == "$2" ]] && echo "$3  $1" | sha256sum --check --status
}

work=''
partial=''
trap 'rm -rf ${work:+"$work"} ${partial:+"$partial"}' EXIT

# A private package list, for machines whose list is missing or outdated; the system's list is unchanged.
update_private_lists() {
  mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
  apt_options+=(-o "Dir::State::Lists=$work/state/lists" -o "Dir::Cache=$work/cache")
  apt-get "${apt_options[@]}" -o APT::Update::Error-Mode=any update >"$work/log" 2>&1
}

# unpack PACKAGE...: into $work/root
apt_options=(-qq -o APT::Sandbox::User=root)
unpack() {
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "needs apt-get and dpkg-deb of Debian"
  mkdir -p "$work/debs" "$work/root"
  if ! (cd "$work/debs" && apt-get "${apt_options[@]}" download "$@" >"$work/log" 2>&1); then
    if ! {
      update_private_lists && (cd "$work/debs" && apt-get "${apt_options[@]}" download "$@" >"$work/log" 2>&1)
    }; then
      echo "fetch_data.sh: cannot download the Debian packages $*; check the network and that apt has a Debian" \
        "archive" >&2
      grep '^E:' "$work/log" | head -n 3 >&2 || true
      exit 1
    fi
  fi
  local package
  for package in "$work"/debs/*.deb; do
    dpkg-deb -x "$package" "$work/root"
    rm "$package"
  done
}

make_kjv() {
  unpack bible-kjv bible-kjv-text
  # The only program that must run: slim images may lack its libraries, which are then unpacked next to it. (grep -q
  # would end before ldd, which then fails, and with pipefail the condition would be false.)
  if LC_ALL=C ldd "$work/root/usr/bin/bible" | grep 'not found' >/dev/null; then
    local readline=libreadline8
    [[ -n $(apt-cache "${apt_options[@]}" show "$readline" 2>/dev/null) ]] || readline=libreadline8t64  # Debian 13
    unpack "$readline" libtinfo6
  fi
  local triplet
  triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu")
  # It finds its database by a path relative to the current folder.
  (cd "$work/root" &&
    LD_LIBRARY_PATH="lib/$triplet:usr/lib/$triplet" ./usr/bin/bible -p usr/lib -f gen1:1-rev22:21 </dev/null)
}

make_ecoli() {
  unpack bowtie-examples
  gzip -dc "$work/root/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz"
}

make_proteins() {
  unpack plast-example
  gzip -dc "$work/root/usr/share/doc/plast-example/db/tursiops.fa.gz"
}

make_all_proteins() {
  unpack plast-example mmseqs2-examples
  gzip -dc "$work/root/usr/share/doc/plast-example/db/tursiops.fa.gz" \
    "$work/root/usr/share/doc/mmseqs2/example-data/"{DB,QUERY}.fasta.gz
}

make_english() {
  unpack anarchism
  (cd "$work/root/usr/share/doc/anarchism/markdown" && LC_ALL=C && gzip -dc -- *.md.gz)
}

unpack_fashion() {
  unpack dataset-fashion-mnist
  gzip -dc "$work/root/usr/share/datasets/fashion-mnist/$1-ubyte.gz"
}
make_fashion_train() { unpack_fashion train-images-idx3; }
make_fashion_train_labels() { unpack_fashion train-labels-idx1; }
make_fashion_test() { unpack_fashion t10k-images-idx3; }
make_fashion_test_labels() { unpack_fashion t10k-labels-idx1; }

# The source of the pages, without the lines that state their section (.TH, .Dt) and without pages that only refer to
# another one. The archive is the same for the same pages.
make_manual_pages() {
  unpack manpages manpages-dev coreutils netpbm iproute2 lvm2
  local section page text
  for section in man1 man2 man3 man8; do
    mkdir -p "$work/manual_pages/$section"
    for page in "$work/root/usr/share/man/$section/"*.gz; do
      [[ -f $page && ! -L $page ]] || continue
      text=$work/manual_pages/$section/$(basename "$page" .gz)
      gzip -dc "$page" | LC_ALL=C grep -av '^\.\(TH\|Dt\) ' >"$text" || true
      if [[ $(head -c 4 "$text") == '.so ' ]]; then rm "$text"; fi
    done
  done
  LC_ALL=C tar --create --format ustar --sort name --mtime @0 --owner 0 --group 0 --numeric-owner --mode u=rwX,go=rX \
    --directory "$work" manual_pages
}

make_antibodies() {
  command -v python3 >/dev/null || fail "antibodies: needs python3"
  unpack r-cran-alakazam r-cran-tigger
  "$(dirname "${BASH_SOURCE[0]}")/antibody_sequences.py" \
    "$work/root/usr/lib/R/site-library/"{tigger,alakazam}/data/Rdata.rdb
}

mkdir -p "$cache" || fail "cannot create the folder $cache"
for name in "${names[@]}"; do
  declare -n expected=$name
  file=$cache/${expected[0]}
  if whole "$file" "${expected[1]}" "${expected[2]}"; then
    echo "$file: exists"
    continue
  fi
  [[ -n $work ]] || work=$(mktemp -d)
  partial=$(mktemp --directory "$file.XXXXXX.partial")  # of this process: another may fetch the same
  rm -rf "$work/root"  # packages of another name, whose files must not mix with these
  "make_$name" >"$partial/data"
  whole "$partial/data" "${expected[1]}" "${expected[2]}" ||
    fail "$file would have $(stat --format %s "$partial/data") bytes, expected ${expected[1]} bytes with a known \
checksum; packages of this release differ from Debian 12's"
  mv "$partial/data" "$file"
  rmdir "$partial"
  echo "$file: ${expected[1]} bytes"
done
