# SPDX-License-Identifier: Apache-2.0
"""Writes sglang-KIND.jsonl.gz: SGLang's own prefix cache and event publisher,
driven without a model: what each lookup finds, each sequence that is stored,
and the events. The kind is its argument: pages, tokens (pages of one token) or
eagle. See README.md for the lines and for how to run it."""

import array
import importlib.metadata
import random
import sys
import time

import torch
import zmq
from sglang.srt.disaggregation.kv_events import KVEventBatch, ZmqEventPublisher
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from recording import Published, count, record, replay, write

KIND = sys.argv[1]
PAGE = 1 if KIND == "tokens" else 16
EVENTS, REPLAY = 15657, 15658


class Allocator:
    """Frees what the cache evicts, in name."""

    device = torch.device("cpu")

    def free_segment(self, *_, **__):
        pass


class Engine:
    def __init__(self, context):
        self.cache = RadixCache(CacheInitParams(
            disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=Allocator(), page_size=PAGE,
            is_eagle=KIND == "eagle", enable_kv_cache_events=True))
        self.publisher = ZmqEventPublisher(0, f"tcp://*:{EVENTS}", f"tcp://*:{REPLAY}", topic="kv")
        self.published = Published(context, EVENTS)

    def publish(self):
        events = self.cache.take_events()
        if not events:
            return
        self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
        self.published.take()

    def serve(self, tokens, salt=None):
        key = RadixKey(array.array("q", tokens), cache_salt=salt)
        found = self.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
        record("lookup", tokens=tokens, salt=salt or "", cached=found)
        self.cache.insert(InsertParams(key=key, value=torch.arange(len(tokens))))
        self.publish()


def main():
    chance = random.Random(4)
    context = zmq.Context()
    engine = Engine(context)
    record("about", engine="sglang " + importlib.metadata.version("sglang"), page=PAGE, eagle=KIND == "eagle")
    engine.publish()

    def ids(n):
        return [chance.choice((chance.randrange(128), chance.randrange(50_000), chance.randrange(150_000))) for _ in range(n)]

    system = ids(100)
    users = [system + ids(30) for _ in range(4)]
    for turn in range(3):
        for i, user in enumerate(users):
            user += ids(chance.randrange(20, 60))
            engine.serve(list(user), "pepper" if i == 3 else None)
    engine.serve(list(users[0]))  # again
    engine.serve(users[1][:150] + ids(40))  # leaves in the middle: the tree splits a node
    engine.cache.evict(EvictParams(num_tokens=200))
    engine.publish()
    for user in users:
        engine.serve(list(user))
    engine.cache.reset()
    engine.publish()
    for user in users[:2]:
        engine.serve(list(user))
    replay(context, REPLAY)
    write(f"sglang-{KIND}.jsonl.gz")
    engine.publisher.shutdown()
    context.destroy(0)
    print(count("lookup"), "lookups,", count("events"), "messages")


main()
