# SPDX-License-Identifier: Apache-2.0
"""Writes chatml.json, deepseek.json and metaspace.json, small tokenizers with
the special tokens of a chat template, and golden.json, the ids that transformers'
apply_chat_template gives the chats of ../templates/chats.json with them, and with
a real tokenizer. See README.md for how to run it."""

import copy
import hashlib
import json
import pathlib
import struct
import sys

import transformers

HERE = pathlib.Path(__file__).parent
TINY = HERE.parent / "tokens/hf/tiny"
TEMPLATES = HERE.parent / "templates"

QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
DEEPSEEK_PLAIN = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"]

# Tokenizer, the tiny one it is made of, special tokens, other added tokens,
# beginning and end of a sequence, templates.
SETS = [
    ("chatml", "qwen", QWEN, QWEN_PLAIN, None, "<|im_end|>", ["Qwen-Qwen2.5-7B-Instruct", "qwen3", "Qwen3-Coder"]),
    ("deepseek", "deepseek", DEEPSEEK, DEEPSEEK_PLAIN, DEEPSEEK[0], DEEPSEEK[1], ["deepseek-ai-DeepSeek-V3.1"]),
    ("metaspace", "mistral", ["<unk>", "<s>", "</s>", *QWEN[1:], "[INST]", "[/INST]"], [], "<s>", "</s>",
     ["mistralai-Mistral-Nemo-Instruct-2407", "Qwen-Qwen2.5-7B-Instruct"]),
]
REAL = ("qwen3", None, "<|im_end|>", ["qwen3", "Qwen-Qwen2.5-7B-Instruct"])


def tokenizer(tiny, special, plain):
    """The tiny tokenizer with other added tokens, numbered as the library does."""
    config = json.loads((TINY / f"{tiny}.json").read_text())
    vocab = config["model"]["vocab"]
    following = len(vocab)
    config["added_tokens"] = []
    for content in special + plain:
        id = vocab.get(content, following)
        following = max(following, id + 1)
        config["added_tokens"].append({
            "id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": content in special})
    return config


def digest(ids):
    return hashlib.sha256(struct.pack(f"<I{len(ids)}I", len(ids), *ids)).hexdigest()[:12]


def results(file, bos, eos, templates, chats):
    tokens = {k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v}
    t = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), clean_up_tokenization_spaces=False, **tokens)
    out = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "tokens": tokens, "templates": {}}
    for name in templates:
        template = (TEMPLATES / "texts" / f"{name}.jinja").read_text()
        got = out["templates"][name] = {}
        for chat in chats:
            r = copy.deepcopy(chat["request"])
            going_on = r.get("continue_final_message", False)
            try:
                ids = t.apply_chat_template(
                    r["messages"], tools=r.get("tools"), documents=r.get("documents"), chat_template=template,
                    add_generation_prompt=r.get("add_generation_prompt", not going_on),
                    continue_final_message=going_on, tokenize=True, return_dict=False, **r.get("chat_template_kwargs", {}))
            except Exception:  # whatever it is, the engine answers 400
                got[chat["name"]] = "refused"
                continue
            got[chat["name"]] = digest(ids)
    return out


def main():
    real = pathlib.Path(sys.argv[1])
    chats = json.loads((TEMPLATES / "chats.json").read_text())
    golden = {"transformers": transformers.__version__, "tiny": {}, "real": {}}
    for name, tiny, special, plain, bos, eos, templates in SETS:
        file = HERE / f"{name}.json"
        file.write_text(json.dumps(tokenizer(tiny, special, plain), ensure_ascii=False, separators=(",", ":")))
        golden["tiny"][name] = results(file, bos, eos, templates, chats)
    name, bos, eos, templates = REAL
    golden["real"][name] = results(real / f"{name}.json", bos, eos, templates, chats)
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


main()
