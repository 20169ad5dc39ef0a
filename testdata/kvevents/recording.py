# SPDX-License-Identifier: Apache-2.0
"""What the scripts that record engines share: the lines, and the replay socket."""

import base64
import gzip
import json
import pathlib
import threading
import time

import zmq

HERE = pathlib.Path(__file__).parent
lines = []
lock = threading.Lock()


def record(kind, **values):
    with lock:
        lines.append({"kind": kind, "time": round(time.time(), 4), **values})


def b64(data):
    return base64.b64encode(data).decode()


def replay(context, port, start=0):
    """Records what the replay socket of that port answers, its end included."""
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    socket.send_multipart((b"", start.to_bytes(8, "big")))
    messages = []
    while socket.poll(10_000):
        frames = socket.recv_multipart()
        messages.append([b64(f) for f in frames])
        if frames[-2] == (-1).to_bytes(8, "big", signed=True):
            break
    record("replay", start=start, messages=messages)
    socket.close(0)


def count(kind):
    return sum(line["kind"] == kind for line in lines)


def write(name):
    with gzip.GzipFile(HERE / name, "wb", mtime=0) as out:
        out.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


class Published:
    """The events of an engine that is driven step by step."""

    def __init__(self, context, port):
        self.socket = context.socket(zmq.SUB)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        time.sleep(0.5)

    def take(self):
        """Records the message that was just published."""
        if not self.socket.poll(5000):
            raise RuntimeError("no event came")
        record("events", frames=[b64(f) for f in self.socket.recv_multipart()])
