# SPDX-License-Identifier: Apache-2.0
"""Makes models that an engine can serve: a few layers of random weights behind
this repository's small tokenizer with Qwen's marks of a chat."""

import json
import pathlib

import safetensors.torch
import torch
import transformers

TESTDATA = pathlib.Path(__file__).parent.parent
TOKENIZER = "exact/chatml.json"
HIDDEN = 128
TEMPLATE = "templates/texts/Qwen-Qwen2.5-7B-Instruct.jinja"


def make(directory, kind):
    """The model of a kind of recording in directory; for adapters also the
    directory of one."""
    directory = pathlib.Path(directory) / "model"
    directory.mkdir(parents=True)
    tokenizer = json.loads((TESTDATA / TOKENIZER).read_text())
    size = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    (directory / "tokenizer.json").write_text((TESTDATA / TOKENIZER).read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "clean_up_tokenization_spaces": False,
        "chat_template": (TESTDATA / TEMPLATE).read_text()}))
    common = dict(
        vocab_size=size, hidden_size=HIDDEN, intermediate_size=256, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=4096, bos_token_id=None, pad_token_id=None,
        eos_token_id=next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<|im_end|>"))
    torch.manual_seed(4)
    if kind == "hybrid":  # every other layer sees two blocks
        config = transformers.Gemma3TextConfig(
            num_hidden_layers=4, head_dim=64, sliding_window=64, layer_types=["sliding_attention", "full_attention"] * 2, **common)
        model = transformers.Gemma3ForCausalLM(config)
    else:
        config = transformers.Qwen2Config(num_hidden_layers=2, tie_word_embeddings=False, **common)
        model = transformers.Qwen2ForCausalLM(config)
    model.generation_config.do_sample = False
    model.save_pretrained(directory)
    if kind != "adapter":
        return directory, None
    return directory, adapter(directory.parent / "adapter")


def adapter(directory):
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"],
        "base_model_name_or_path": None, "bias": "none", "use_dora": False, "use_rslora": False}))
    names = [f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{m}.weight" for i in range(2) for m in "AB"]
    shapes = {"A": (8, HIDDEN), "B": (HIDDEN, 8)}
    safetensors.torch.save_file({n: torch.randn(shapes[n[-8]]) for n in names}, directory / "adapter_model.safetensors")
    return directory
