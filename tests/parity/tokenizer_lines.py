"""Lines of mixed text for tokenizer_ids.py, the same every time."""

import random
import unicodedata

N_LINES = 10_000
SCRIPTS = {
    "cjk": "人工智能改变世界。機器學習は楽しい、カタカナとひらがな。한국어 문장도 있습니다！𠀀𪜀",
    "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка Їжак",
    "arabic": "الذكاء الاصطناعي يغيّر العالم، هل هذا صحيح؟ ١٢٣٤",
    "hebrew": "שָׁלוֹם עוֹלָם, מה שלומך?",
    "hindi": "नमस्ते दुनिया, यह एक परीक्षण है। १२३",
    "thai": "สวัสดีชาวโลก นี่คือการทดสอบ ๑๒๓",
    "greek": "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία ΣΊΣΥΦΟΣ ᾈδης",
    "latin": "Größe naïve façade Ærøskøbing İstanbul ıßß Łódź Đặng Thị œuvre ﬁne ſtraße ÅÅÅ ǅ Ⅷ ½ ² ㎏ ﬀ",
    "emoji": "😀👍🏽👩‍👩‍👧‍👦🇩🇪❤️🧑‍🚀✨🫶 ☕️ ①② ™®©",
    "symbols": "→←∑∫≈≠∞€£¥§¶•…–—“”‘’«»‹›¿¡°±×÷ \u00ad \u200b\u200d\ufeff \u180e",
}
CODE = [
    "def f(x, *args):\n",
    "  return x**2 + 3*x",
    "for (int i = 0; i < n; ++i) {",
    "std::vector<std::pair<int, float>> v;",
    "SELECT * FROM t WHERE a='b';",
    "\t\tif x is None:",
    "0xDEADBEEF 1e-10 3.14159 0b1010",
    "git commit -m \"don't\"",
    "</div><a href=\"#\">",
    "x_1 = y__2--;",
    "#!/bin/sh",
    "{\"a\": [1,2,3]}",
]
URLS = [
    "https://example.org/a/b?c=d&e=%20f#g",
    "http://127.0.0.1:8080/",
    "user.name+tag@mail.example.com",
    "ftp://files.example.net/~x/y.tar.gz",
    "www.example.com/путь/页",
]
SPELLED = [
    "[MASK]",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<|endoftext|>",
    "<|im_start|>",
    "<mask>",
    "<|begin_of_text|>",
    "<tool>",
    "[mask]",
]
CONTRACTIONS = [
    "don't",
    "DON'T",
    "we'll",
    "WE'LL",
    "I'm",
    "they've",
    "it's",
    "IT'S",
    "o'clock",
    "'tis",
    "'ſ",
    "rock'n'roll",
    "y'all'd've",
    "you're",
]
WHITESPACE = [
    " ",
    "  ",
    "   ",
    "\t",
    "\t\t",
    "\r",
    " \r ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u2028",
    "\x0b",
    "\x0c",
    "\x85",
    "        ",
    "\u1680",
]
CONTROL = [chr(c) for c in range(0x20) if c != 0x0A] + ["\x7f", "\x80", "\x9f", "\ufffd", "\ue000", "\u0600", "\u2060"]


def mixed_lines(words):
    """Lines of a few pieces, each piece of one of the kinds above; the same lines every time."""
    rng = random.Random(20240229)
    # Characters that have been assigned since Unicode 3.2, whose categories all tables agree on.
    old = [
        chr(c)
        for c in range(0x21, 0x30000)
        if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co") and c not in STRAYS
    ]
    # A letter with marks after it in the order of a careless writer.
    accents = lambda: "".join(
        rng.choice("aeiouAEIOUnczs") + "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randrange(4)))
        for _ in range(5)
    )

    def script():
        text = rng.choice(list(SCRIPTS.values()))
        begin = rng.randrange(len(text))
        return text[begin : begin + rng.randrange(1, 40)]

    kinds = [
        (30, lambda: " ".join(rng.choice(words) for _ in range(rng.randrange(1, 12)))),
        (6, lambda: rng.choice(CODE).rstrip("\n")),
        (
            8,
            lambda: rng.choice(
                [
                    str(rng.randrange(10 ** rng.randrange(1, 14))),
                    f"{rng.random()*10**rng.randrange(6):,.{rng.randrange(5)}f}",
                    "1,234,567.89",
                ]
            ),
        ),
        (10, lambda: rng.choice(WHITESPACE) * rng.choice([1, 1, 1, 2, 3, 7])),
        (16, script),
        (4, accents),
        (4, lambda: rng.choice(URLS)),
        (3, lambda: rng.choice(CONTROL)),
        (3, lambda: rng.choice(SPELLED)),
        (5, lambda: rng.choice(CONTRACTIONS)),
        (3, lambda: "".join(rng.choice(old) for _ in range(rng.randrange(1, 6)))),
        (1, lambda: rng.choice("abzé漢!") * rng.randrange(90, 130)),
        (2, lambda: rng.choice("!?.,;:'\"()[]{}<>@#$%^&*-_=+|\\/~`") * rng.randrange(1, 5)),
    ]
    weights, makers = zip(*kinds)
    lines = []
    for number in range(N_LINES):
        pieces = (maker() for maker in rng.choices(makers, weights, k=rng.randrange(1, 8)))
        line = rng.choice(["", " ", " "]).join(pieces)
        lines.append("" if number % 997 == 0 else line)
    assert not any("\n" in line for line in lines)
    return lines


# Of old characters, those whose category has changed since, or for which the reference's table is of another year.
STRAYS = {0x166D, 0x1734, 0x180E, 0xFFF9, 0xFFFA, 0xFFFB, 0x17B4, 0x17B5, 0x6DD}


def protein_lines():
    rng = random.Random(7)
    return [
        "".join(rng.choices("ACDEFGHIKLMNPQRSTVWY" * 8 + "XBZUOJacdy*-.1", k=rng.randrange(0, 200)))
        for _ in range(N_LINES)
    ]


def smiles_lines():
    rng = random.Random(8)
    parts = [
        "C",
        "c1ccccc1",
        "N",
        "O",
        "Cl",
        "Br",
        "[nH]",
        "[C@@H]",
        "(",
        ")",
        "=",
        "#",
        "[O-]",
        "[Na+]",
        ".",
        ">>",
        "/",
        "\\",
        "%10",
        "2",
        "[Xx]",
        "S",
        "[13CH3]",
        "~",
        "*",
        "B",
        "I",
        "F",
        "p",
        "@",
    ]
    return ["".join(rng.choices(parts, k=rng.randrange(1, 60))) for _ in range(N_LINES)]
