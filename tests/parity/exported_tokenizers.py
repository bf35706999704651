#!/usr/bin/env python3
"""Tokenizers of models that `furlong export` writes, as AutoTokenizer loads them: the ids of `furlong tokenize`.

For each of a table of BERT models whose tokenizer is a vocab.txt, with or without tokenizer_config.json, and a GPT-2
with vocab.json and merges.txt, of letters and SMILES, and a Llama with a SentencePiece model (BPE of `furlong prepare
tokenizer`; BPE and Unigram of the package sentencepiece), exported as such and (with linear attention) with code:
AutoTokenizer.from_pretrained gives every text the ids that `furlong tokenize --add-special-tokens` gives it with
the model's own files and with the exported ones. AutoModel gives a padded batch of texts, with all that the tokenizer
returns, the hidden states that it gives the ids of each text alone, within 1e-5.

    PYTHON tests/parity/exported_tokenizers.py --furlong build/release/bin/furlong

Needs torch, sentencepiece and transformers (4.46 or later).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

# transformers copies a model's code here, by the name of its folder: another run must not share it.
MODULES = tempfile.TemporaryDirectory()
os.environ["HF_MODULES_CACHE"] = MODULES.name

import sentencepiece
import torch
import transformers

import random_models
from tokenizer_lines import mixed_lines, protein_lines, smiles_lines

TEXTS = [
    "Hello, world!",
    "HELLO WORLD",
    "the quick brown fox jumps over the lazy dog",
    "unaffordable, re-doing; it's don't",
    "Élan vital: naïve café, coöperate, Ångström, ÉÈÊË",
    "cafe\u0301 nai\u0308ve e\u0302tre",
    "Straße İstanbul ıßŒœ Ǆǆ ŉ",
    "Ελληνικά ΟΔΟΣ άέή",
    "Привет, МИР! ёлка Йод",
    "中文字符和 English 混合",
    "日本語のテキスト カタカナ",
    "한국어 텍스트 각",
    "ภาษาไทย हिन्दी العَرَبِيَّة עִבְרִית",
    "𠀀𪜀 rare ideographs",
    "emoji 😀👩‍👩‍👧 ☃️ ❤",
    "1,234.56 + 7 = $8% [x] {y} <z> a_b a/b a\\b ~^`|",
    "“quotes” ‘single’ – dash — em… ellipsis ¿qué? ¡sí!",
    "tabs\tand   spaces\u00a0no-break\u3000ideographic\u2009thin",
    "zero\u200bwidth\u200djoiner\ufeffbom soft\u00adhyphen",
    "control \x01\x02 \x7f characters \ufffd",
    "x" * 101,
    "a" * 100,
    "qqqzzz xyzzy",
    "w0 w1 W2 w3w4",
    "ﬁ ﬂ ligatures ½ ² Ⅷ ①",
    "[CLS] [SEP] [MASK] [UNK] [PAD] [mask]",
    "[MASK]abc [MASK]",
    "",
    " ",
    "   ",
    "  leading, trailing and   repeated    spaces   ",
    "\u2581a \u2581\u2581 b\u2581",
    "aaaaaaa aaa ======== ---- 00000 ...",
    "\ttab\t\tat the ends\t",
    "<s>the fox</s> and </s>",
]

# SentencePiece models with a normalization map.
MAPPED = {"pieces_bpe", "pieces_unigram", "pieces_unigram_folded"}

# A batch of different lengths.
PADDED_TEXTS = ["CN", "Hello, world!", "the quick brown fox jumps over the lazy dog", "MKVLAG C1CCCCC1 [MASK] 1,234"]


def furlong(program, *arguments):
    result = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, f"furlong {' '.join(map(str, arguments))}: {result.stderr.strip()}"
    return result.stdout


def vocabulary(cased):
    letters = [chr(97 + i) for i in range(26)] + list("0123456789.,!?'-[]éèëïöåñßœçøü") + list("αβγδεζηικλμνορςστυ")
    letters += list("абвгдежзийклмнопрстуфхцчшщъыьэюяё") + list("中文字符和日本語𠀀") + list("のテキスト한국어")
    words = "hello world the quick fox un affordable cafe café naive мир w0 w1 w2".split()
    if cased:
        letters += [letter.upper() for letter in letters if letter.upper() != letter and len(letter.upper()) == 1]
        words += [word.capitalize() for word in words if word.capitalize() != word] + ["HELLO"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters + ["##" + letter for letter in letters] + words
    return list(dict.fromkeys(tokens))


def bert(cased, config):
    """Writes a model with a vocab.txt and this tokenizer_config.json, without the keys that are None, or with none."""

    def write(folder):
        tokens = vocabulary(cased)
        sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokens), **sizes))
        random_models.save(model, folder)
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
        if config is not None:
            keys = {"tokenizer_class": "BertTokenizer", **config}
            keys = {key: value for key, value in keys.items() if value is not None}
            (folder / "tokenizer_config.json").write_text(json.dumps(keys))

    return write


def gpt2(folder):
    """Writes a model whose tokenizer is vocab.json and merges.txt."""
    random_models.save(random_models.gpt2(), folder)
    random_models.byte_tokenizer(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def letters(tokens, special, config=None):
    """Writes a model whose tokenizer is a vocab.txt of letters or of SMILES, which transformers takes for WordPiece."""

    def write(folder):
        sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        model = transformers.BertModel(transformers.BertConfig(vocab_size=len(special) + len(tokens), **sizes))
        random_models.save(model, folder)
        (folder / "vocab.txt").write_text("\n".join([*special, *tokens]) + "\n")
        if config:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))

    return write


def cases_of_letters():
    """The same, for letters and SMILES."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    smiles = "C c N n O o S s P F Cl Br I ( ) [nH] [C@@H] [O-] = # - + 1 2 3 %10 / \\ .".split()
    return {
        "letters": letters("LAGVSERTIDPKQNFYMHWCXé^-]", special),
        "smiles": letters(smiles, special),
    }


def pieces(program, trainer):
    """Writes a model whose tokenizer is tokenizer.model: `trainer` has SentencePiece's options, or is None for `furlong
    prepare tokenizer`."""

    def write(folder):
        lines = folder / "lines.txt"
        lines.write_text("\n".join(mixed_lines(["hello", "world", "the", "café", "unaffordable"])) + "\n")
        model = folder / "tokenizer.model"
        if trainer is None:
            furlong(program, "prepare", "tokenizer", lines, "--vocabulary-size", 5000, "--output", model)
        else:
            keys = dict(vocab_size=5000, hard_vocab_limit=False, minloglevel=2, **trainer)
            sentencepiece.SentencePieceTrainer.train(input=str(lines), model_prefix=str(folder / "tokenizer"), **keys)
        lines.unlink()
        size = sentencepiece.SentencePieceProcessor(model_file=str(model)).get_piece_size()
        ids = dict(bos_token_id=1, eos_token_id=2)
        random_models.save(random_models.llama(vocab_size=size, **ids), folder)

    return write


def cases_of_pieces(program):
    """The same, for SentencePiece models."""
    plain = dict(normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False)
    prefix = dict(add_dummy_prefix=True)
    return {
        "pieces_of_furlong": pieces(program, None),
        "pieces_bpe": pieces(program, dict(model_type="bpe")),
        "pieces_llama": pieces(program, dict(model_type="bpe", byte_fallback=True, **{**plain, **prefix})),
        "pieces_unigram": pieces(program, dict(model_type="unigram")),
        "pieces_unigram_bytes": pieces(program, dict(model_type="unigram", byte_fallback=True, **plain)),
        "pieces_unigram_identity": pieces(program, dict(model_type="unigram", normalization_rule_name="identity")),
        "pieces_unigram_folded": pieces(program, dict(model_type="unigram", normalization_rule_name="nmt_nfkc_cf")),
    }


def cases():
    """name -> function that writes a model and its tokenizer."""
    return {
        "lower_case": bert(False, {"do_lower_case": True}),
        "cased": bert(True, {"do_lower_case": False}),
        "keeps_accents": bert(False, {"do_lower_case": True, "strip_accents": False}),
        "cased_strips_accents": bert(True, {"do_lower_case": False, "strip_accents": True}),
        "no_chinese_characters": bert(False, {"do_lower_case": True, "tokenize_chinese_chars": False}),
        "class_alone": bert(False, {}),
        "no_class": bert(False, {"do_lower_case": True, "tokenizer_class": None}),
        "no_config": bert(False, None),
        "cased_no_config": bert(True, None),
        "gpt2": gpt2,
    }


def ids_of_furlong(program, folder, texts, work):
    lines = work / "lines.txt"
    lines.write_text("".join(text + "\n" for text in texts), newline="")
    output = furlong(program, "tokenize", folder, lines, "--parse-special", "--add-special-tokens")
    return [[int(id) for id in line.split()] for line in output.split("\n")[:-1]]


def check_padding(tokenizer, folder):
    """A padded batch has the states of each text's ids alone: padding is masked, and other inputs do no harm."""
    model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = 0
    inputs = tokenizer(PADDED_TEXTS, padding=True, return_tensors="pt")
    masks = inputs["attention_mask"].bool()
    assert not bool(masks.all()), "the batch has no padding"
    with torch.no_grad():
        padded = model(**inputs).last_hidden_state
        for ids, mask, states in zip(inputs["input_ids"], masks, padded):
            alone = model(input_ids=ids[mask][None]).last_hidden_state[0]
            error = (states[mask] - alone).abs().max().item()
            assert error <= 1e-5, f"states of a padded batch differ by {error:.2g}"


def has_marks(text):
    """Normalization maps are applied to a letter with its marks as a whole in transformers, unlike in SentencePiece."""
    return any(unicodedata.category(letter).startswith("M") or letter in "\uff9e\uff9f" for letter in text)


def are_ties(source, first, second):
    """Whether these are two segmentations of one text by a Unigram model, of the same score: SentencePiece adds scores
    in float32, transformers in float64, and rounding decides."""
    if not (source / "tokenizer.model").exists():
        return False
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    texts, scores = (
        [part([function(id) for id in ids]) for ids in (first, second)]
        for part, function in (("".join, pieces.id_to_piece), (sum, pieces.get_score))
    )
    return texts[0] == texts[1] and abs(scores[0] - scores[1]) <= 1e-4 * max(1, abs(scores[0]))


def check(program, write, attention, texts, work):
    """Returns messages about texts with other ids."""
    source, checkpoint, exported = work / "source", work / "model.h5", work / "exported"
    source.mkdir()
    write(source)
    furlong(program, "convert", source, checkpoint, *attention)
    furlong(program, "export", checkpoint, exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    wanted, back = (ids_of_furlong(program, folder, texts, work) for folder in (source, exported))
    found = [tokenizer(text)["input_ids"] for text in texts]
    check_padding(tokenizer, exported)
    if (source / "vocab.txt").exists():
        assert tokenizer.mask_token_id == 4 and tokenizer.pad_token_id == 0, "other special tokens"
    return [
        f"{text!r}: transformers {b}, furlong {a}, of the exported files {c}"
        for text, a, b, c in zip(texts, wanted, found, back)
        if a != c or (a != b and not are_ties(source, a, b))
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", type=pathlib.Path, default=pathlib.Path("build/release/bin/furlong"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    texts = TEXTS + protein_lines()[:20] + smiles_lines()[:40]
    texts += mixed_lines(["hello", "world", "café", "мир", "unaffordable"])[:200]
    print(f"transformers {transformers.__version__}, {len(texts)} texts", flush=True)
    failed = False
    only = set(filter(None, arguments.only.split(",")))
    program = arguments.furlong.resolve()
    for name, write in {**cases(), **cases_of_letters(), **cases_of_pieces(program)}.items():
        if only and name not in only:
            continue
        for kind, attention in {"native": [], "with code": ["--attention", "elu1"]}.items():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    known = texts
                    if name.startswith("pieces"):  # Furlong reads the name of the unknown token as text
                        known = [text for text in known if "<unk>" not in text]
                    if name in MAPPED:
                        known = [text for text in known if not has_marks(text)]
                    wrong = check(program, write, attention, known, pathlib.Path(folder))
                except Exception as error:  # of any library: the next model is still to be checked
                    print(f"{name:<24} {kind:<10} FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    failed = True
                    continue
            print(f"{name:<24} {kind:<10} {len(known) - len(wrong)} of {len(known)} texts equal", flush=True)
            for line in wrong[:3]:
                print("   ", line[:600])
            failed |= bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
