# SPDX-License-Identifier: Apache-2.0
"""Writes vllm-KIND.jsonl.gz: vLLM serving a model of random weights, recorded
together: its KV events from the PUB socket and by replay, what /tokenize says of
each request, the requests, and the streamed answers with their usage. The kind
is its argument: plain, hybrid or adapter. See README.md for the lines and for
how to run it."""

import base64
import http.client
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import zmq

import model
from recording import b64, count, record, replay, write

PORT, EVENTS, REPLAY = 18477, 15577, 15578
KIND = sys.argv[1]
BLOCK = 32  # the CPU's attention wants multiples of 32
BLOCKS = 160 if KIND == "hybrid" else 80
TOPIC = "kv@tiny"
QUIET = 0.25  # seconds without events after which an engine at rest has told all

SYSTEM = ("You are a careful assistant of a small library. Answer in one sentence. Name the shelf, the title and the year. "
          "Say so if the library does not have the book. Never invent a title, an author or a year. ")
QUESTIONS = [
    "Which books about the history of Rome do you have?",
    "And which of them were written after 1950?",
    "Thank you. Do you have a map of the same time?",
    "Where is the reading room, and when is it open?",
]

def post(path, body, quietly=False):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    connection.request("POST", path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    if response.status != 200 and not quietly:
        raise RuntimeError(f"{path}: {response.status} {data[:300]}")
    return response.status, data


class Events:
    """Records what the engine publishes, as it comes."""

    def __init__(self, context):
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.connect(f"tcp://127.0.0.1:{EVENTS}")
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.last = time.monotonic()
        self.stopped = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped:
            if self.socket.poll(50):
                record("events", frames=[b64(f) for f in self.socket.recv_multipart()])
                self.last = time.monotonic()

    def settle(self):
        start = time.monotonic()
        while time.monotonic() - max(self.last, start) < QUIET:
            time.sleep(0.02)

    def stop(self):
        self.stopped = True
        self.thread.join()


def chat(id, user, messages, model="tiny", **more):
    """One streamed chat; the answer's text."""
    body = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": 20, "temperature": 0, **more}
    _, told = post("/tokenize", {"model": "tiny", "messages": messages})
    record("tokenize", id=id, tokens=json.loads(told)["tokens"])
    payload = json.dumps(body, ensure_ascii=False)
    record("request", id=id, user=user, body=payload)
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    connection.request("POST", "/v1/chat/completions", payload.encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    chunks = []
    while data := response.read1():
        chunks.append([round(time.time(), 4), b64(data)])
    record("response", id=id, status=response.status, chunks=chunks)
    if response.status != 200:
        raise RuntimeError(f"{response.status} {base64.b64decode(chunks[0][1])}")
    text = ""
    for line in b"".join(base64.b64decode(c) for _, c in chunks).decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text


class User:
    def __init__(self, name, **more):
        self.name, self.more, self.turns = name, more, 0
        self.messages = [{"role": "system", "content": SYSTEM * 3}]

    def ask(self, id):
        question = QUESTIONS[self.turns % len(QUESTIONS)]
        if self.turns == 0:
            question = f"I am {self.name}. {question}"
        self.turns += 1
        self.messages.append({"role": "user", "content": question})
        text = chat(id, self.name, self.messages, **self.more)
        self.messages.append({"role": "assistant", "content": text})


def converse(events):
    numbers = iter(range(1, 1000))
    users = [User("Ada"), User("Ben"), User("Cleo", cache_salt="cleo-only"), User("Dan", return_token_ids=True)]
    if KIND == "adapter":
        users[1].more["model"] = "sql"
        users.append(User("Flo", model="sql", cache_salt="flo-only"))
    for turn in range(3):
        for user in users:
            user.ask(next(numbers))
            events.settle()
    # The same request again: all of it but the last token is cached.
    chat(next(numbers), "Ada", users[0].messages[:-1])
    events.settle()
    # Three at once.
    together = [threading.Thread(target=u.ask, args=(n,)) for u, n in zip(users[:3], numbers)]
    for t in together:
        t.start()
    for t in together:
        t.join()
    events.settle()
    # Longer than what is left: the engine evicts.
    for name in ("Eve", "Finn", "Gil"):
        long = [{"role": "user", "content": f"I am {name}. " + " ".join(f"Line {i} by {name}: {i * i}." for i in range(24))}]
        chat(next(numbers), name, long)
        events.settle()
    users[0].ask(next(numbers))
    events.settle()
    status, _ = post("/reset_prefix_cache", None)
    record("reset", path="/reset_prefix_cache", status=status)
    events.settle()
    for user in users + users[:1]:
        user.ask(next(numbers))
        events.settle()
    return next(numbers)


def main():
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0" if KIND == "adapter" else "1"}
    with tempfile.TemporaryDirectory() as scratch:
        directory, adapter = model.make(scratch, KIND)
        arguments = [
            "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(PORT), "--enforce-eager",
            "--max-model-len", "2048", "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS),
            "--dtype", "float32", "--enable-prefix-caching", "--enable-prompt-tokens-details", "--kv-events-config",
            json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "topic": TOPIC, "endpoint": f"tcp://*:{EVENTS}",
                        "replay_endpoint": f"tcp://*:{REPLAY}"})]
        if adapter:
            arguments += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", "sql=adapter"]
        record("about", engine="vllm " + importlib.metadata.version("vllm-cpu"), tokenizer=model.TOKENIZER, template=model.TEMPLATE,
               arguments=arguments)
        log = open(pathlib.Path(tempfile.gettempdir()) / "engine.log", "w")
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory), *arguments],
            cwd=scratch, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            context = zmq.Context()
            events = Events(context)
            wait(server)
            requests = converse(events)
            replay(context, REPLAY)
            replay(context, REPLAY, 5)
            events.stop()
        finally:
            server.terminate()
            server.wait(60)
    write(f"vllm-{KIND}.jsonl.gz")
    print(requests - 1, "requests,", count("events"), "event messages")


def wait(server):
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError("the engine did not start; see engine.log in the directory of temporary files")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError("the engine does not answer")


main()
