# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json: what OpenAI's tiktoken makes of the corpus, of the runs
and of generated strings. See README.md for how to run it."""

import hashlib
import json
import os
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent
ENCODINGS = ["cl100k_base", "o200k_base", "p50k_base", "r50k_base"]

# Pieces that generated strings are put together from.
FRAGMENTS = [
    " ", " ", " ", "  ", "   ", "\n", "\n", "\r\n", "\r", "\t", "\n\n", " \n", "\n ", "\t\t", "/", "//", "\n/",
    "'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'LL", "'d", "'", "''", "'l", "'\u017f", "'x", "\u2019s",
    "a", "b", "s", "t", "A", "B", "S", "Z", "the", "The", "THE", "word", "Word", "wOrD", "hello", " world", "camelCase",
    "SNAKE_CASE", "HTTPServer", "iPhone", "x1", "I'll", "don't", "DON'T", "ing", "tion", "pre", "un",
    "0", "1", "12", "123", "1234", "00000", "3.14", "1e9", "\u0661\u0662", "\u00bd", "\u2167", "\u0967", "\U0001d7d8",
    "!", "!!", "...", "?", "(", ")", "{", "}", "\"", "\\", "_", "-", "--", "==", "=>", "&&", "<|", "|>", "<|endoftext|>",
    "<|endofprompt|>", "#", "@", "$", "%", "^", "~", "`", "```", ";", ":", "://", ",",
    "\u00a0", "\u0085", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e",
    "\x00", "\x01", "\x0b", "\x0c", "\x1b", "\x1c", "\x1f", "\x7f", "\u0080", "\u009f",
    "\u00e9", "\u00c9", "e\u0301", "E\u0301", "\u0301", "\u0301\u0302", "\u0345", "\u20dd", "\ufe0f", "\u200d",
    "\u00df", "\u1e9e", "\u0130", "\u0131", "\u01c5", "\u01c4", "\u01c6", "\u02b0", "\u02bc", "\u00aa", "\u2126", "\u212a", "\u24b6",
    "\u4f60\u597d", "\u4e2d\u6587", "\u7684", "\u3002", "\uff0c", "\u3042", "\u30ab\u30bf", "\u3005", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab",
    "\u0645\u0631\u062d\u0628\u0627", "\u064e", "\u05e9\u05dc\u05d5\u05dd", "\u05b8", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a", "\u0ba8\u0bbf",
    "\u0440\u0443\u0441", "\u0420\u0423\u0421", "\u03b1\u03b2", "\u0391\u0392", "\u10d0", "\u1c90", "\u13a0", "\uab70",
    "\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\U0001f3fd", "\u2764\ufe0f", "\U00020000", "\U0001d400", "\U0001e900", "\U0001e922",
    "\ue000", "\ufffd", "\uffff", "\U0010ffff", "\u0378",
]

# Runs whose pieces are long: the fragment and how often it comes.
RUNS = [
    ["a", 20000], ["A", 5000], [" ", 20000], ["\n", 20000], ["\t", 5000], ["\r\n", 5000], ["0", 5000], ["-", 5000], ["=", 5000],
    [" \n", 5000], ["\n ", 5000], ["\n  ", 5000], ["ab", 5000], ["aA", 5000], ["Aa", 5000], ["'s", 3000], ["' ", 3000], ["a ", 3000],
    ["\u4e2d", 5000], ["\u4e2dA", 3000], ["\u4f60\u597d", 3000], ["e\u0301", 3000], ["\u0301", 5000], ["\U0001f600", 3000],
    ["\u3000", 3000], ["\u00a0", 3000], ["\x00", 3000], ["\ufffd", 3000], ["/", 5000], ["!/\n", 3000], ["abcdefghijklmnopqrstuvwxyz", 500],
    ["the", 3000], [" the", 3000], ["lorem", 3000], ["\u0e01\u0e32\u0e23", 2000], ["ffi", 3000], ["xyzzy", 3000], ["zq", 5000],
]

FUZZED, BATCH = 10000, 50

# First code points of the stretches whose characters are tried one by one: all
# that Unicode has assigned, and one of private use.
STRETCH = 0x1000
STRETCHES = [*range(0, 0x34000, STRETCH), 0xE0000, 0x10F000]
MASK = (1 << 64) - 1


class Chance:
    """splitmix64, as in the Go test."""

    def __init__(self, seed):
        self.state = seed

    def next(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def fuzzed(chance):
    parts = []
    for _ in range(1 + chance.next(40)):
        kind = chance.next(20)
        if kind == 0:
            parts.append(chr(chance.next(0xD800)))
        elif kind == 1:
            parts.append(chr(0x10000 + chance.next(0x20000)))
        elif kind == 2:
            parts.append(FRAGMENTS[chance.next(len(FRAGMENTS))] * (1 + chance.next(30)))
        else:
            parts.append(FRAGMENTS[chance.next(len(FRAGMENTS))])
    return "".join(parts)


def around(c):
    """A text whose cuts tell the class of c."""
    return "".join(before + c for before in "aA1 !\n's")


def digest(rows):
    h = hashlib.sha256()
    for ids in rows:
        h.update(struct.pack(f"<I{len(ids)}I", len(ids), *ids))
    return h.hexdigest()[:12]


def main():
    ranks = pathlib.Path(sys.argv[1])
    cache = pathlib.Path(sys.argv[2])
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(cache)
    for name in ENCODINGS:
        address = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        file = (ranks / f"{name}.tiktoken").read_bytes()
        (cache / hashlib.sha1(address.encode()).hexdigest()).write_bytes(file)

    import tiktoken

    files = sorted(p.name for p in (HERE / "corpus").iterdir())
    texts = {name: (HERE / "corpus" / name).read_bytes().decode() for name in files}
    chance = Chance(1)
    strings = [fuzzed(chance) for _ in range(FUZZED)]
    golden = {
        "tiktoken": tiktoken.__version__,
        "fragments": FRAGMENTS,
        "runs": RUNS,
        "fuzzed": FUZZED,
        "batch": BATCH,
        "stretch": STRETCH,
        "stretches": STRETCHES,
        "encodings": {},
    }
    for name in ENCODINGS:
        encode = tiktoken.get_encoding(name).encode_ordinary
        ids = [encode(s) for s in strings]
        golden["encodings"][name] = {
            "samples": {f: encode(texts[f][:400]) for f in files},
            "files": {f: digest([encode(texts[f])]) for f in files},
            "runs": [digest([encode(f * n)]) for f, n in RUNS],
            "fuzzed": [digest(ids[i : i + BATCH]) for i in range(0, FUZZED, BATCH)],
            "characters": [
                digest([encode(around(chr(c))) for c in range(lo, lo + STRETCH) if not 0xD800 <= c < 0xE000])
                for lo in STRETCHES
            ],
        }
    text = json.dumps(golden, ensure_ascii=True, separators=(",", ":"))
    (HERE / "golden.json").write_text(text.replace('"encodings"', '\n"encodings"').replace('"samples"', '\n"samples"') + "\n")


main()
