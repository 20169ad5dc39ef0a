# SPDX-License-Identifier: Apache-2.0
"""Records what vLLM answers to the questions of tokenize/remote's test, over HTTP
(vllm launch render, which needs no GPU and no weights). See README.md."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "exact"))
sys.argv = [sys.argv[0], "unused"]  # no real tokenizer is needed
import engines

PORT = 18447
SETS = {"chatml": "qwen3", "metaspace": "mistralai-Mistral-Nemo-Instruct-2407"}


def start(directory, name, template):
    engines.model(directory, name, None, engines.ids_of(name))
    (directory / "chat_template.jinja").write_text(engines.template(template))
    server = subprocess.Popen(
        [pathlib.Path(sys.executable).parent / "vllm", "launch", "render", directory, "--host", "127.0.0.1", "--port", str(PORT),
         "--served-model-name", "m", "--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    for _ in range(600):
        time.sleep(1)
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
            return server
        except urllib.error.URLError:
            if server.poll() is not None:
                break
    server.kill()
    raise SystemExit(f"vllm does not start for {name}")


for name, template in SETS.items():
    with tempfile.TemporaryDirectory() as directory:
        server = start(pathlib.Path(directory), name, template)
        try:
            subprocess.run(
                ["go", "test", "-count=1", "./tokenize/remote", "-run", "WhatVLLMAnswers", "-v"], cwd=HERE.parent.parent, check=True,
                env=os.environ | {"KVAWARE_RECORD": f"http://127.0.0.1:{PORT}", "KVAWARE_RECORD_SET": name})
        finally:
            server.terminate()
            server.wait()
