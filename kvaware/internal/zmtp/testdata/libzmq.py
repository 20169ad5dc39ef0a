# SPDX-License-Identifier: Apache-2.0
"""Plays one socket of libzmq for the tests of this package, through pyzmq.

    libzmq.py '{"role": "pub", ...}'

Says on standard output what happens, one JSON value a line; the first line is
{"port": n or 0, "libzmq": [4, 3, 5]}. Ends with its standard input.
"""

import json
import os
import sys
import threading
import zmq
from zmq.auth.thread import ThreadAuthenticator

END = (-1).to_bytes(8, "big", signed=True)


def say(value):
    print(json.dumps(value), flush=True)


def open_socket(context, options):
    kinds = {"pub": zmq.XPUB, "sub": zmq.SUB, "router": zmq.ROUTER, "dealer": zmq.DEALER, "req": zmq.REQ}
    socket = context.socket(kinds[options["role"]])
    socket.linger = 0
    for name, value in options.get("set", {}).items():
        value = value.encode() if isinstance(value, str) else value
        socket.setsockopt(getattr(zmq, name), value)
    port = 0
    if "connect" in options:
        socket.connect(options["connect"])
    elif "bind" in options:
        socket.bind(options["bind"])
    else:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    say({"port": port, "libzmq": list(zmq.zmq_version_info())})
    return socket


def publish(socket):
    """Tells of subscriptions, and sends as it is told: topic, count, size."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    seq = 0
    while True:
        ready = dict(poller.poll())
        if socket in ready:
            say({"subscription": socket.recv().hex()})
        if sys.stdin.fileno() in ready:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                return
            order = json.loads(line)
            for _ in range(order["count"]):
                socket.send_multipart([order["topic"].encode(), seq.to_bytes(8, "big"), b"x" * order["size"]])
                seq += 1
            say({"sent": seq})


def subscribe(socket):
    """Tells of each message: topic, number, size."""
    while True:
        topic, seq, payload = socket.recv_multipart()
        say([topic.decode(), int.from_bytes(seq, "big"), len(payload)])


def answer(socket, kept):
    """Answers replays as vLLM's and SGLang's publishers do."""
    while True:
        peer, _, start = socket.recv_multipart()
        for seq in range(int.from_bytes(start, "big"), kept):
            socket.send_multipart([peer, b"", seq.to_bytes(8, "big"), b"x" * (seq % 1000)])
        socket.send_multipart([peer, b"", END, b""])


def ask(socket, empty, start):
    """Asks for a replay and tells of the answers: number, size."""
    socket.send_multipart([b""] * empty + [start.to_bytes(8, "big")])
    while True:
        seq, payload = socket.recv_multipart()[empty:]
        say([int.from_bytes(seq, "big", signed=True), len(payload)])
        if seq == END or empty == 0:  # a REQ gets one answer
            return


def until_told(run, *args):
    threading.Thread(target=run, args=args, daemon=True).start()
    sys.stdin.read()


def main():
    options = json.loads(sys.argv[1])
    context = zmq.Context()
    if "password" in options:
        judge = ThreadAuthenticator(context)
        judge.start()
        judge.configure_plain(domain="*", passwords={options["username"]: options["password"]})
    socket = open_socket(context, options)
    role = options["role"]
    if role == "pub":
        publish(socket)
    elif role == "sub":
        until_told(subscribe, socket)
    elif role == "router":
        until_told(answer, socket, options["kept"])
    else:
        until_told(ask, socket, 1 if role == "dealer" else 0, options["start"])


main()
os._exit(0)  # sockets and threads end with the process
