# SPDX-License-Identifier: Apache-2.0
"""Makes a model that an engine can serve: two layers of random weights behind
this repository's small tokenizer with Qwen's marks of a chat."""

import json
import pathlib

import torch
import transformers

TESTDATA = pathlib.Path(__file__).parent.parent
TOKENIZER = "exact/chatml.json"
TEMPLATE = "templates/texts/Qwen-Qwen2.5-7B-Instruct.jinja"


def make(directory):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((TESTDATA / TOKENIZER).read_text())
    size = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    (directory / "tokenizer.json").write_text((TESTDATA / TOKENIZER).read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "clean_up_tokenization_spaces": False,
        "chat_template": (TESTDATA / TEMPLATE).read_text()}))
    config = transformers.Qwen2Config(
        vocab_size=size, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<|im_end|>"))
    torch.manual_seed(4)
    model = transformers.Qwen2ForCausalLM(config)
    model.generation_config.do_sample = False
    model.save_pretrained(directory)
    return directory
