# SPDX-License-Identifier: Apache-2.0
"""Writes wire.jsonl: messages in the shapes of engines' versions, as msgspec
encodes structs of the same layout and libzmq carries them from a PUB socket to
a SUB socket. See README.md for how to run it."""

import base64
import json
import pathlib
import typing

import msgspec
import zmq

HERE = pathlib.Path(__file__).parent
NONE = object()  # a field without a default

# A field with its default, by the version that added it. Types do not matter to
# an encoder.
STORED = [("block_hashes", NONE), ("parent_block_hash", NONE), ("token_ids", NONE), ("block_size", NONE), ("lora_id", NONE)]
REMOVED = [("block_hashes", NONE)]
MEDIUM = [("medium", NONE)]
LORA_NAME = [("lora_name", NONE)]
EXTRA_KEYS = [("extra_keys", None)]
GROUP = [("group_idx", None)]
SPEC = [("kv_cache_spec_kind", None), ("kv_cache_spec_sliding_window", None)]
LOCALITY = [("locality", None)]
OWNERSHIP = [("ownership", None)]
SESSION = [("session_id", None)]
SGLANG_MEDIUM = [("medium", None)]
SGLANG_MAP = SGLANG_MEDIUM + [("cache_salt", None), ("session_id", None)]
METADATA = [("metadata", NONE)]

# Engine and version: fields of a store and of a removal, whether events are
# arrays, whether events leave out defaults, whether batches do.
VLLM, SGLANG = "data_parallel_rank", "attn_dp_rank"
ENGINES = {
    "vllm 0.9": (VLLM, STORED, REMOVED, True, True, True),
    "vllm 0.11": (VLLM, STORED + MEDIUM, REMOVED + MEDIUM, True, True, True),
    "vllm 0.16": (VLLM, STORED + MEDIUM + LORA_NAME, REMOVED + MEDIUM, True, True, True),
    "vllm 0.19": (VLLM, STORED + MEDIUM + LORA_NAME + EXTRA_KEYS, REMOVED + MEDIUM, True, True, True),
    "vllm 0.22": (VLLM, STORED + MEDIUM + LORA_NAME + EXTRA_KEYS + GROUP + SPEC, REMOVED + MEDIUM + GROUP, True, True, True),
    "vllm 0.25": (VLLM, STORED + MEDIUM + LORA_NAME + EXTRA_KEYS + GROUP + SPEC, REMOVED + MEDIUM + GROUP, False, True, True),
    "vllm 0.32": (VLLM, STORED + MEDIUM + LORA_NAME + EXTRA_KEYS + GROUP + SPEC + LOCALITY + OWNERSHIP + SESSION,
                  REMOVED + MEDIUM + GROUP + LOCALITY + OWNERSHIP, False, True, True),
    "sglang 0.4.7": (SGLANG, STORED, REMOVED, True, True, True),
    "sglang 0.5.12": (SGLANG, STORED + SGLANG_MEDIUM, REMOVED + SGLANG_MEDIUM, True, True, True),
    "sglang 0.5.18": (SGLANG, STORED + SGLANG_MEDIUM, REMOVED + SGLANG_MEDIUM, True, False, False),
    "sglang 0.5.18 salted": (SGLANG, STORED + SGLANG_MEDIUM + METADATA, REMOVED + SGLANG_MEDIUM, True, False, False),
    "sglang 0.5.20": (SGLANG, STORED + SGLANG_MAP, REMOVED + SGLANG_MEDIUM, False, True, False),
    "sglang 0.5.23": (SGLANG, STORED + SGLANG_MAP + LORA_NAME, REMOVED + SGLANG_MEDIUM, False, True, False),
    "llm-d simulator": (VLLM, STORED + MEDIUM + LORA_NAME + EXTRA_KEYS, REMOVED + MEDIUM, True, False, False),
    "dynamo trtllm": (VLLM, STORED[:4] + [("lora_name", None), ("block_mm_infos", None)], REMOVED, False, True, False),
    "map batch": (VLLM, STORED + MEDIUM + LORA_NAME + EXTRA_KEYS + GROUP + SPEC, REMOVED + MEDIUM + GROUP, False, True, True),
    "map batch of arrays": (SGLANG, STORED + SGLANG_MEDIUM, REMOVED + SGLANG_MEDIUM, True, True, True),
}


def struct(name, fields, **options):
    # A default None makes a field optional; those without one come first.
    required = [(n, typing.Any) for n, d in fields if d is NONE]
    optional = [(n, typing.Any, d) for n, d in fields if d is not NONE]
    if options.get("array_like") and [n for n, *_ in required + optional] != [n for n, _ in fields]:
        options["kw_only"] = True  # SGLang's metadata follows a default
        return msgspec.defstruct(name, [(n, typing.Any) if d is NONE else (n, typing.Any, d) for n, d in fields], **options)
    return msgspec.defstruct(name, required + optional, **options)


class Engine:
    def __init__(self, name):
        self.name = name
        rank, stored, removed, arrays, omit, omit_batch = ENGINES[name]
        self.batch_map = name.startswith("map batch")
        options = {"array_like": arrays, "omit_defaults": omit, "tag": True}
        self.fields = [n for n, _ in stored]
        self.removed_fields = [n for n, _ in removed]
        self.stored_type = struct("BlockStored", stored, **options)
        self.removed_type = struct("BlockRemoved", removed, **options)
        self.cleared_type = struct("AllBlocksCleared", [], **options)
        self.other_type = struct("BlockMoved", [("block_hashes", NONE), ("to", NONE)], **options)
        self.batch_type = msgspec.defstruct(
            "KVEventBatch", [("ts", float), ("events", list), (rank, typing.Any, None)],
            array_like=not self.batch_map, omit_defaults=omit_batch)

    def stored(self, **values):
        return self.stored_type(**{n: values.get(n) for n in self.fields})

    def removed(self, **values):
        return self.removed_type(**{n: values.get(n) for n in self.removed_fields})


def key(h):
    return "0x" + h.hex() if isinstance(h, bytes) else str(h % 2**64)


TIERS = {None: 0, "GPU": 0, "CPU": 1, "cpu": 1, "CPU_PINNED": 1}
KINDS = {None: 0, "full_attention": 1, "mla_attention": 1, "sliding_window": 2, "mamba": 2}


def expect(engine, rank, ts, told):
    """What a reader makes of events, each (kind, values)."""
    events = []
    skipped = 0
    for kind, values in told:
        if kind == "cleared":
            events.append({"kind": "cleared"})
            continue
        if kind == "moved":
            skipped += 1
            continue
        fields = engine.fields if kind == "stored" else engine.removed_fields
        v = {n: values.get(n) for n in fields}
        e = {"kind": kind, "blocks": [key(h) for h in v["block_hashes"]], "tier": TIERS.get(v.get("medium"), 2),
             "group": -1 if v.get("group_idx") is None else v["group_idx"]}
        if kind == "stored":
            e["parent"] = key(v["parent_block_hash"]) if v["parent_block_hash"] else None
            e["tokens"] = [t[0] if isinstance(t, tuple) else t for t in v["token_ids"]]
            e["block_size"] = v["block_size"]
            e["attention"] = KINDS[v.get("kv_cache_spec_kind")]
            e["lora"] = v.get("lora_name") or str(v.get("lora_id") or "")
            salt = v.get("cache_salt") or (v.get("metadata") or {}).get("cache_salt")
            others = [False] * len(v["block_hashes"])
            for i, info in enumerate(v.get("block_mm_infos") or []):
                others[i] = info is not None
            for i, keys in enumerate(v.get("extra_keys") or []):
                for k in keys or ():
                    if isinstance(k, str) and k == values.get("salt"):
                        salt = k
                    elif k != v.get("lora_name"):
                        others[i] = True
            e["salt"] = salt if not v["parent_block_hash"] and salt else ""
            e["others"] = others
        events.append(e)
    return {"time": ts, "rank": -1 if rank is None else rank, "skipped": skipped, "events": events}


def tokens(n, start=0):
    """Ids of every width that msgpack has."""
    return [(i * 7919 + start) % [100, 250, 60000, 150000][i % 4] for i in range(n)]


def scenarios(name):
    """The batches of an engine: (rank, [(kind, values)])."""
    sglang, array = name.startswith("sglang"), ENGINES[name][3]
    if sglang or "trtllm" in name:  # signed, on both sides of zero
        h = [-9187343239835811841, 12, -1, 4611686018427387904, -129, 7]
    else:  # the low 64 bits of a digest
        h = [17363906734117437612, 12, 2**64 - 1, 9223372036854775808, 70000, 7]
    root = dict(block_hashes=h[:2], token_ids=tokens(32), block_size=16, medium="GPU", group_idx=0,
                kv_cache_spec_kind="full_attention")
    if "salted" in name:
        root["metadata"] = {"cache_salt": "pepper"}
    if "simulator" in name:
        root["parent_block_hash"] = 0
    child = dict(block_hashes=h[2:5], parent_block_hash=h[1], token_ids=tokens(48, 5), block_size=16, medium="GPU", group_idx=0,
                 kv_cache_spec_kind="full_attention")
    if "salted" in name:
        child["metadata"] = {"cache_salt": "pepper"}
    yield None, [("stored", root), ("stored", child)]
    yield 0, [("removed", dict(block_hashes=h[4:5], medium="GPU", group_idx=0)), ("cleared", {})]
    yield 3, [("moved", {}), ("removed", dict(block_hashes=h, medium="CPU_PINNED" if sglang else "CPU", group_idx=1))]
    yield 1, [("stored", {**root, "lora_id": 4, "lora_name": "sql", "medium": "DISK" if sglang else "STORAGE"})]
    if "trtllm" in name:
        yield 0, [("stored", {**root, "block_mm_infos": [None, {"mm_objects": [{"mm_hash": 5, "offsets": [[16, 20]]}]}]})]
    if sglang:
        pairs = tokens(17)
        yield None, [("stored", {**root, "block_hashes": h[5:], "token_ids": list(zip(pairs, pairs[1:]))})]
        yield None, [("stored", {**root, "block_hashes": h[2:], "token_ids": tokens(4), "block_size": 1, "medium": "EXTERNAL"})]
    if "cache_salt" in [n for n, _ in ENGINES[name][1]]:
        yield None, [("stored", {**root, "cache_salt": "pepper", "session_id": "s-1"}),
                     ("stored", {**child, "cache_salt": "pepper", "session_id": "s-1"})]
    if "extra_keys" in [n for n, _ in ENGINES[name][1]]:
        yield 0, [("stored", {**root, "extra_keys": [("pepper",), None], "salt": "pepper"}),
                  ("stored", {**root, "lora_id": 4, "lora_name": "sql", "extra_keys": [("sql", "pepper"), ("sql",)], "salt": "pepper"}),
                  ("stored", {**child, "extra_keys": [None, (("5f2a" * 16, 3),), (("5f2a" * 16, -13), ("77aa" * 16, 9))]}),
                  ("stored", {**root, "extra_keys": [(("5f2a" * 16, 3), "pepper", b"\x05" * 32), (b"\x06" * 32,)], "salt": "pepper"})]
        # The offloading connector: a chunk's last hash alone.
        yield 0, [("stored", dict(block_hashes=h[1:2], token_ids=[], block_size=0, medium="CPU", group_idx=0))]
        yield 0, [("stored", {**child, "group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128,
                              "block_hashes": h[2:4]})]
    if not sglang and name not in ("vllm 0.9", "map batch of arrays", "dynamo trtllm"):
        digests = [bytes([i]) * 32 for i in (1, 2, 250)]
        yield 0, [("stored", {**root, "block_hashes": digests[:2], "parent_block_hash": digests[2]}),
                  ("removed", dict(block_hashes=digests + [b"\x09" * 16], medium="GPU", group_idx=0))]


def main():
    context = zmq.Context()
    publisher, subscriber = context.socket(zmq.PUB), context.socket(zmq.SUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.setsockopt(zmq.RCVTIMEO, 5000)
    while True:  # until the subscription has arrived
        publisher.send(b"hello")
        if subscriber.poll(20):
            break
    while subscriber.poll(100):
        subscriber.recv()
    lines = []
    for name in ENGINES:
        engine = Engine(name)
        for seq, (rank, told) in enumerate(scenarios(name)):
            events = []
            for kind, values in told:
                if kind == "stored":
                    events.append(engine.stored(**values))
                elif kind == "removed":
                    events.append(engine.removed(**values))
                elif kind == "moved":
                    events.append(engine.other_type([1, 2], {"shelf": ["deep", None, 1.5]}))
                else:
                    events.append(engine.cleared_type())
            ts = 1_764_460_800 + seq / 4
            payload = msgspec.msgpack.encode(engine.batch_type(ts, events, rank))
            publisher.send_multipart((b"kv@pod-1@tiny", seq.to_bytes(8, "big"), payload))
            frames = subscriber.recv_multipart()
            lines.append({"shape": name, "frames": [base64.b64encode(f).decode() for f in frames],
                          "want": expect(engine, rank, ts, told)})
    (HERE / "wire.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    context.destroy(0)
    print(len(lines), "messages;", zmq.zmq_version(), msgspec.__version__)


main()
