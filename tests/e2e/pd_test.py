#!/usr/bin/env python3
"""Prefill on one engine, decode on another, either side asleep, dead or stopped at any time."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import time
import unittest

from harness import COMMAND, Background, Server, make_model, wait_until
from pd import (Instance, Router, TransferTest, cached_tokens, completion, conversation, decode_leg,
                essence, other_weights, path_of, prefill_leg, prompt, single_answer, streamed_essence,
                transfer_config, url)

KINDS = ("1", "2", "kv")


class Pair(TransferTest):
    """A producer and two consumers of it: one that computes what it cannot load, one that fails."""

    EXTRA = {}
    FLAGS = ()

    @classmethod
    def start_class(cls):
        cls.producer = cls.start_once(cls.make_producer())
        cls.decoder = cls.start_once(cls.make_decoder("d0", "recompute"))
        cls.strict = cls.start_once(cls.make_decoder("d1", "fail"))

    @classmethod
    def config(cls, **options):
        return transfer_config(ipc_dir=str(cls.folder / "ipc"), **{**cls.EXTRA, **options})

    @classmethod
    def make_producer(cls, *flags, model=None, engine_id="p0", port=5600, **options):
        config = cls.config(role="kv_producer", engine_id=engine_id, port=port)
        return Instance(model or cls.model, config, *cls.FLAGS, *flags, **options)

    @classmethod
    def make_decoder(cls, engine_id, policy, *flags, model=None, peers=("127.0.0.1:5600",), **options):
        config = cls.config(role="kv_consumer", engine_id=engine_id, policy=policy, peers=list(peers))
        return Instance(model or cls.model, config, *cls.FLAGS, *flags, **options)

    def setUp(self):
        self.addCleanup(self.awake_and_idle)

    def awake_and_idle(self):
        """As each test begins. A sleep ends the leases that a test left untaken on purpose."""
        for server in (self.producer, self.decoder, self.strict):
            server.alive()
            if server is self.producer and server.status()["blocks_used"]:
                server.sleep("kv")
            if server.get("/is_sleeping").json()["is_sleeping"]:
                server.post("/wake_up")
                server.post("/reload_weights")
                server.post("/resume")
            server.idle()

    def transfers(self, body=None, producer=None, decoder=None):
        """A whole request over both, every token of it transferred."""
        producer, decoder = producer or self.producer, decoder or self.strict
        body = body or self.body()
        before = decoder.transferred(), decoder.recomputed()
        self.right(decode_leg(decoder, body, prefill_leg(producer, body)), body)
        self.assertGreaterEqual(decoder.transferred() - before[0], 0.95 * len(body["prompt"]))
        self.assertEqual(decoder.recomputed(), before[1])

    def is_refused(self, params, body, decoder=None, strict=None):
        """Whatever is wrong with the reference, nobody gets an answer from it."""
        message = self.failed_load(decode_leg(strict or self.strict, body, params))
        self.right(decode_leg(decoder or self.decoder, body, params), body)
        return message

    def nobody_holds(self, blocks, *servers):
        for server in servers:
            self.assertFalse(server.blocks() & blocks, server.config["engine_id"])


class Answers(Pair):
    LENGTHS = (1, 15, 16, 17, 40, 200)

    def test_answers_are_those_of_a_single_instance(self):
        for length, stream in itertools.product(self.LENGTHS, (False, True)):
            with self.subTest(length=length, stream=stream):
                body = self.body(length)
                params = prefill_leg(self.producer, body)
                if stream:
                    found = streamed_essence(self.strict.stream(
                        path_of(body), {**body, "kv_transfer_params": params}))
                else:
                    found = essence(self.ok(decode_leg(self.strict, body, params)))
                self.assertEqual(found, single_answer(self.reference, body))
                self.producer.idle()

    def test_a_chat_is_answered_like_a_single_instance(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                body = conversation(f"Tell me a long story, please. {stream}")
                params = prefill_leg(self.producer, body)
                if stream:
                    found = streamed_essence(self.strict.stream(
                        path_of(body), {**body, "kv_transfer_params": params}))
                else:
                    found = essence(self.ok(decode_leg(self.strict, body, params)))
                self.assertEqual(found, single_answer(self.reference, body))

    def test_sampling_with_a_seed_is_the_same(self):
        body = self.body(80, temperature=1.0, seed=7)
        self.right(decode_leg(self.strict, body, prefill_leg(self.producer, body)), body)

    def test_the_tokens_are_transferred_and_counted(self):
        for length in (40, 200, 1000):
            with self.subTest(length):
                self.transfers(self.body(length))

    def test_a_pull_is_not_waited_for_longer_than_it_takes(self):
        def seconds(call):
            started = time.monotonic()
            call()
            return time.monotonic() - started
        taken = []
        for _ in range(5):
            body = self.body(100, max_tokens=1)
            params = prefill_leg(self.producer, body)
            taken.append(seconds(lambda body=body, params=params: decode_leg(self.strict, body, params)))
        self.assertLess(min(taken), 0.1, taken)

    def test_the_second_time_the_local_cache_answers(self):
        body = self.body(200)
        self.transfers(body)
        before = self.strict.transferred()
        again = self.strict.post(path_of(body), body)
        self.right(again, body)
        self.assertGreaterEqual(cached_tokens(again), 192)
        self.assertEqual(self.strict.transferred(), before)

    def test_what_is_cached_here_is_not_transferred_again(self):
        body = self.body(208)
        self.transfers(body)
        longer = completion(body["prompt"] + prompt(100, next(self.seeds)))
        before = self.strict.transferred()
        self.right(decode_leg(self.strict, longer, prefill_leg(self.producer, longer)), longer)
        self.assertLess(self.strict.transferred() - before, 150)
        self.producer.idle()

    def test_a_full_hit_gives_the_lease_back(self):
        body = self.body(160)
        self.transfers(body)
        self.right(decode_leg(self.strict, body, prefill_leg(self.producer, body)), body)
        self.producer.idle()

    def test_many_at_once_are_all_right(self):
        bodies = [self.body(20 + 31 * i) for i in range(12)]
        def ask(body):
            return decode_leg(self.strict, body, prefill_leg(self.producer, body))
        for body, answer in zip(bodies, Background(*(lambda body=body: ask(body) for body in bodies)).join(),
                                strict=True):
            self.right(answer, body)

    def test_a_cache_too_small_for_all_preempts_and_is_right(self):
        small = self.start(self.make_decoder("d2", "fail", "--kv-cache-memory-bytes", "400K",
                                             "--max-num-batched-tokens", 64))
        bodies = [self.body(200, max_tokens=120) for _ in range(10)]
        def ask(body):
            return decode_leg(small, body, prefill_leg(self.producer, body))
        for body, answer in zip(bodies, Background(*(lambda body=body: ask(body) for body in bodies)).join(),
                                strict=True):
            self.right(answer, body)
        small.idle()

    def test_without_a_prefix_cache_it_transfers_all_the_same(self):
        other = self.start(self.make_decoder("d2", "fail", "--no-enable-prefix-caching"))
        self.transfers(decoder=other)

    def test_params_carry_who_keeps_what(self):
        params = prefill_leg(self.producer, self.body(40))
        self.assertEqual((params["do_remote_prefill"], params["do_remote_decode"]), (True, False))
        self.assertEqual((params["remote_engine_id"], params["remote_port"]), ("p0", 5600))
        self.assertEqual(params["remote_num_tokens"], 40)
        self.assertEqual([len(group) for group in params["remote_block_ids"]], [3])
        self.assertTrue(params["lease_token"] and params["remote_incarnation"])
        self.assertEqual(self.producer.status()["blocks_used"], 3)
        self.is_refused({**params, "lease_token": "0" * len(params["lease_token"])}, self.body(40))

    def test_a_reference_is_good_once(self):
        body, params = self.body(100), None
        params = prefill_leg(self.producer, body)
        self.right(decode_leg(self.strict, body, params), body)
        for server in (self.strict, self.decoder):
            self.ok(server.post("/reset_prefix_cache"))
        before = self.producer.counter("kv_stale_references_refused_total")
        self.is_refused(params, body)
        wait_until(lambda: self.producer.counter("kv_stale_references_refused_total") > before, 2,
                   "a refusal in the metrics")

    def test_a_reference_never_serves_another_prompt(self):
        """The producer's blocks were used again meanwhile: an old reference must not name them."""
        old = self.body(100)
        params = prefill_leg(self.producer, old)
        self.right(decode_leg(self.decoder, old, params), old)
        others = [self.body(100) for _ in range(4)]
        kept = [prefill_leg(self.producer, other) for other in others]
        new = self.body(100)
        self.is_refused({**params, "remote_block_ids": kept[0]["remote_block_ids"]}, new)
        for other, params in zip(others, kept, strict=True):
            self.right(decode_leg(self.strict, other, params), other)


    def test_a_reference_serves_the_prompt_it_was_made_for(self):
        body = self.body(100)
        self.is_refused(prefill_leg(self.producer, body), self.body(100))

    def test_tokens_beyond_those_that_were_computed_are_not_taken(self):
        """The last block has room for more tokens than the producer wrote."""
        body = self.body(100)
        longer = completion(body["prompt"] + prompt(12, next(self.seeds)))
        params = prefill_leg(self.producer, body)
        answer = decode_leg(self.decoder, longer, {**params, "remote_num_tokens": 112})
        if answer.status != 400:
            self.right(answer, longer)
        self.right(decode_leg(self.decoder, longer, prefill_leg(self.producer, body)), longer)


class Verified(Pair):
    FLAGS = ("--verify-kv",)

    def test_checksums_fit(self):
        for length in (1, 16, 40, 500):
            with self.subTest(length):
                body = self.body(length)
                self.right(decode_leg(self.strict, body, prefill_leg(self.producer, body)), body)
        self.transfers()
        self.assertEqual(self.strict.counter("kv_verify_mismatches_total"), 0)


class Asleep(Pair):
    def cycle(self, kind, *servers):
        for server in servers:
            self.ok(server.sleep(kind))
        for server in servers:
            server.wake(kind)

    def test_both_work_again_after_either_slept(self):
        parties = (("producer",), ("strict",), ("producer", "strict"), ("strict", "producer"))
        for kind, names in itertools.product(KINDS, parties):
            for round_ in range(2):
                with self.subTest(kind=kind, names=names, round=round_):
                    self.transfers()
                    self.cycle(kind, *(getattr(self, name) for name in names))
                    self.transfers()

    def test_asleep_nobody_holds_a_block_of_it(self):
        for kind, name in itertools.product(KINDS, ("producer", "strict")):
            for round_ in range(2):
                with self.subTest(kind=kind, name=name, round=round_):
                    self.transfers()
                    sleeper = getattr(self, name)
                    others = {self.producer, self.strict, self.decoder} - {sleeper}
                    imported = self.producer.blocks() if sleeper is not self.producer else set()
                    own, shared = sleeper.blocks() - imported, sleeper.resident_bytes("RssShmem")
                    self.assertGreater(shared, 256 << 10)
                    reply = self.ok(sleeper.sleep(kind))
                    left = sleeper.blocks()
                    if kind == "kv":
                        self.assertTrue(own - left)
                    else:
                        self.assertEqual(left, set())
                        self.assertLess(sleeper.resident_bytes("RssShmem"), 64 << 10)
                    self.nobody_holds(own - left, *others)
                    self.assertNotIn("pinned", str(reply["receipt"]["kept"]))
                    sleeper.wake(kind)
        self.transfers()

    def test_the_shared_memory_of_both_comes_back(self):
        self.transfers()
        for kind in ("1", "2"):
            for server in (self.producer, self.strict, self.decoder):
                self.ok(server.sleep(kind))
            for server in (self.producer, self.strict, self.decoder):
                self.assertEqual(server.blocks(), set())
                self.assertLess(server.resident_bytes("RssShmem"), 64 << 10)
                server.wake(kind)

    def test_the_producer_sleeps_between_the_legs(self):
        for kind, wakes in itertools.product(KINDS, (False, True)):
            for round_ in range(2):
                with self.subTest(kind=kind, wakes=wakes, round=round_):
                    body = self.body()
                    params = prefill_leg(self.producer, body)
                    self.ok(self.producer.sleep(kind))
                    if wakes:
                        self.producer.wake(kind)
                    recomputed = self.decoder.recomputed()
                    message = self.is_refused(params, body)
                    self.assertGreater(len(message), 10)
                    self.assertGreater(self.decoder.recomputed(), recomputed)
                    if not wakes:
                        self.producer.wake(kind)
                    self.producer.idle()
        self.transfers()

    def test_a_stream_over_a_sleeping_producer_is_right(self):
        body = self.body()
        params = prefill_leg(self.producer, body)
        self.ok(self.producer.sleep("1"))
        stream = self.decoder.stream(path_of(body), {**body, "kv_transfer_params": params})
        self.assertEqual(streamed_essence(stream), single_answer(self.reference, body))
        failed = self.strict.post(path_of(body), {**body, "stream": True, "kv_transfer_params": params})
        if failed.status == 200:  # the stream had begun: the error stands in it, and it ends
            self.assertIn('"error":{"message":"The KV cache of the prompt could not be loaded', failed.text)
            self.assertNotIn('"finish_reason":"length"', failed.text)
            self.assertTrue(failed.text.endswith("data: [DONE]\n\n"))
        else:
            self.failed_load(failed)
        self.producer.wake("1")

    def test_the_decoder_sleeps_between_the_legs(self):
        for kind in KINDS:
            for round_ in range(2):
                with self.subTest(kind=kind, round=round_):
                    body = self.body()
                    params = prefill_leg(self.producer, body)
                    self.ok(self.strict.sleep(kind))
                    refused = decode_leg(self.strict, body, params) if kind != "kv" else None
                    if refused is not None:
                        self.assertEqual(refused.status, 503, refused)
                        self.assertTrue(refused.headers["Retry-After"])
                    self.strict.wake(kind)
                    before = self.strict.transferred()
                    self.right(decode_leg(self.strict, body, params), body)
                    self.assertGreaterEqual(self.strict.transferred() - before, 95)

    def test_both_sleep_between_the_legs(self):
        for kind in KINDS:
            with self.subTest(kind):
                body = self.body()
                params = prefill_leg(self.producer, body)
                self.cycle(kind, self.producer, self.strict, self.decoder)
                self.is_refused(params, body)
        self.transfers()

    def test_the_generation_stands_in_the_params(self):
        first = prefill_leg(self.producer, self.body())
        self.cycle("1", self.producer)
        body = self.body()
        second = prefill_leg(self.producer, body)
        self.assertEqual(second["remote_generation"], first["remote_generation"] + 1)
        self.assertEqual(second["remote_incarnation"], first["remote_incarnation"])
        for other in (first["remote_generation"], second["remote_generation"] + 1, 0, 1 << 40):
            self.is_refused({**prefill_leg(self.producer, body), "remote_generation": other}, body)
        self.transfers()

    def test_leases_of_a_sleeper_end_and_its_sleep_is_quick(self):
        for kind, mode in itertools.product(("1", "2"), ("abort", "wait")):
            with self.subTest(kind=kind, mode=mode):
                for _ in range(3):
                    prefill_leg(self.producer, self.body(40))
                self.assertGreater(self.producer.status()["blocks_used"], 0)
                started = time.monotonic()
                answer = self.producer.sleep(kind, mode=mode, timeout_ms=700)
                self.assertLess(time.monotonic() - started, 5.0)
                self.assertEqual(answer.status, 200, answer)
                self.producer.wake(kind)
                self.producer.idle(2.0)

    def test_it_sleeps_while_requests_flow(self):
        """Whoever sleeps in the middle: each answer is right or says why there is none."""
        for sleeper in (self.producer, self.decoder):
            end, statuses = time.monotonic() + 1.5, []
            def ask(end=end, statuses=statuses):
                while time.monotonic() < end:
                    body = self.body(64)
                    ask = {**body, "max_tokens": 1, "kv_transfer_params": {
                        "do_remote_decode": True, "do_remote_prefill": False}}
                    leg = self.producer.post(path_of(body), ask)
                    params = leg.json().get("kv_transfer_params") if leg.status == 200 else None
                    answer = self.decoder.post(path_of(body), {**body, "kv_transfer_params": params})
                    statuses.append(answer.status)
                    if answer.status == 200 and answer.json()["choices"][0]["finish_reason"] == "length":
                        self.right(answer, body)
            asking = Background(*[ask] * 3)
            kinds = itertools.cycle(KINDS)
            while time.monotonic() < end:
                kind = next(kinds)
                self.ok(sleeper.sleep(kind))
                sleeper.wake(kind)
                time.sleep(0.05)
            asking.join()
            self.assertIn(200, statuses)
            self.assertLessEqual(set(statuses), {200, 502, 503})
        self.transfers()

    def test_a_level_0_sleep_keeps_everything(self):
        body = self.body()
        params = prefill_leg(self.producer, body)
        blocks = self.producer.blocks()
        self.ok(self.producer.sleep("0"))
        self.assertEqual(self.producer.blocks(), blocks)
        self.right(decode_leg(self.strict, body, params), body)
        self.producer.wake("0")

    def test_descriptors_do_not_pile_up(self):
        def counts():
            return [len(os.listdir(f"/proc/{server.pid}/fd")) for server in (self.producer, self.strict)]
        self.cycle("1", self.producer, self.strict)
        self.transfers()
        before = counts()
        for _ in range(10):
            self.cycle("1", self.producer, self.strict)
            self.transfers()
        for now, then in zip(counts(), before, strict=True):
            self.assertLessEqual(now, then + 1)


class Mutual(TransferTest):
    """Two engines, each the other's producer and consumer."""

    def test_both_sleep_at_the_same_moment(self):
        ipc_dir = str(self.folder / "ipc")
        first, second = (self.start(Instance(self.model, transfer_config(
            engine_id=f"b{port}", port=port, peers=[f"127.0.0.1:{other}"], policy="fail", ipc_dir=ipc_dir)))
            for port, other in ((5801, 5802), (5802, 5801)))
        def transfer(producer, consumer):
            body = self.body()
            self.right(decode_leg(consumer, body, prefill_leg(producer, body)), body)
        for kind in KINDS * 2:
            with self.subTest(kind):
                transfer(first, second)
                transfer(second, first)
                held = first.blocks() | second.blocks()
                started = time.monotonic()
                for answer in Background(*(lambda one=one: one.sleep(kind) for one in (first, second))).join():
                    self.assertEqual(answer.status, 200, answer)
                self.assertLess(time.monotonic() - started, 3.0)
                self.assertLess(len((first.blocks() | second.blocks()) & held), len(held))
                if kind != "kv":
                    self.assertEqual(first.blocks() | second.blocks(), set())
                Background(*(lambda one=one: one.wake(kind) for one in (first, second))).join()
        transfer(first, second)
        self.assertEqual(second.recomputed() + first.recomputed(), 0)


class Gone(Pair):
    """Peers that die, restart or stand still."""

    def setUp(self):
        super().setUp()
        self.extra_port = next(self.seeds) + 6000
        self.mine = self.start(self.make_producer(engine_id="p9", port=self.extra_port))
        peers = ["127.0.0.1:5600", f"127.0.0.1:{self.extra_port}"]
        self.lenient = self.start(self.make_decoder("d8", "recompute", peers=peers))
        self.failing = self.start(self.make_decoder("d9", "fail", peers=peers))

    def refused_by_mine(self, params, body):
        return self.is_refused(params, body, self.lenient, self.failing)

    def test_the_producer_dies_between_the_legs(self):
        for met in (False, True):
            with self.subTest(met=met):
                if met:
                    self.mine.kill()
                    self.mine = self.start(self.make_producer(engine_id="p9", port=self.extra_port))
                    self.transfers(None, self.mine, self.failing)
                    self.transfers(None, self.mine, self.lenient)
                body = self.body()
                params = prefill_leg(self.mine, body)
                held = self.mine.blocks()
                self.mine.kill()
                self.refused_by_mine(params, body)
                wait_until(lambda: not (self.failing.blocks() | self.lenient.blocks()) & held, 5,
                           "the dead producer's pages to go")

    def test_the_producer_restarts_between_the_legs(self):
        self.transfers(None, self.mine, self.failing)
        body = self.body()
        params = prefill_leg(self.mine, body)
        self.mine.kill()
        again = self.start(self.make_producer(engine_id="p9", port=self.extra_port))
        other = prefill_leg(again, body)
        self.assertNotEqual(other["remote_incarnation"], params["remote_incarnation"])
        self.refused_by_mine(params, body)
        self.right(decode_leg(self.failing, body, other), body)
        self.transfers(None, again, self.failing)

    def test_the_producer_dies_under_a_pull(self):
        for first in (True, False):
            with self.subTest(first_meeting=first):
                if not first:
                    self.mine.kill()
                    self.mine = self.start(self.make_producer(engine_id="p9", port=self.extra_port))
                    self.transfers(None, self.mine, self.failing)
                    self.transfers(None, self.mine, self.lenient)
                bodies = [self.body(), self.body()]
                params = [prefill_leg(self.mine, body) for body in bodies]
                self.mine.stand_still()
                asking = Background(lambda: decode_leg(self.failing, bodies[0], params[0]),
                                    lambda: decode_leg(self.lenient, bodies[1], params[1]))
                time.sleep(0.2)
                started = time.monotonic()
                self.mine.kill()
                failed, right = asking.join(20.0)
                self.assertLess(time.monotonic() - started, 5.0)
                self.failed_load(failed)
                self.right(right, bodies[1])
                self.failing.idle()
                self.lenient.idle()

    def test_the_decoder_dies_holding_a_mapping(self):
        self.transfers(None, self.mine, self.failing)
        self.transfers(None, self.mine, self.lenient)
        self.assertTrue(self.failing.blocks() & self.mine.blocks(), "the decoder maps nothing")
        self.failing.kill()
        started = time.monotonic()
        own = self.mine.blocks()
        self.ok(self.mine.sleep("1", timeout_ms=3000))
        self.assertLess(time.monotonic() - started, 2.0)
        self.nobody_holds(own, self.lenient)
        self.mine.wake("1")
        self.transfers(None, self.mine, self.lenient)

    def test_the_decoder_dies_under_a_pull(self):
        body = self.body()
        params = prefill_leg(self.mine, body)
        self.mine.stand_still()
        def ask():
            with contextlib.suppress(OSError):
                decode_leg(self.failing, body, params)
        asking = Background(ask)
        time.sleep(0.2)
        self.failing.kill()
        self.mine.go_on()
        asking.join(10)
        self.ok(self.mine.sleep("1", timeout_ms=3000))
        self.mine.wake("1")
        self.mine.idle()
        self.transfers(None, self.mine, self.lenient)

    def test_a_decoder_that_stands_still_fails_the_sleep_by_name(self):
        self.transfers(None, self.mine, self.failing)
        before, held = self.mine.status(), self.mine.blocks()
        self.failing.stand_still()
        try:
            started = time.monotonic()
            answer = self.mine.sleep("1", timeout_ms=1000)
            self.assertLess(time.monotonic() - started, 3.0)
            self.assertGreaterEqual(answer.status, 400, answer)
            text = answer.json()["error"]["message"]
            self.assertTrue("d9" in text or str(self.failing.pid) in text, text)
            after = self.mine.status()
            self.assertEqual(after["state"], "running", after)
            self.assertEqual(after["generation_kv_cache"], before["generation_kv_cache"])
            self.assertEqual(after["memory"]["kv_cache"]["mapped"], before["memory"]["kv_cache"]["mapped"])
            self.assertLessEqual(held, self.mine.blocks())
            self.right(self.mine.post("/v1/completions", (body := self.body())), body)
            self.transfers(None, self.mine, self.lenient)

            started = time.monotonic()
            forced = self.ok(self.mine.sleep("1", timeout_ms=1000, force="true"))
            self.assertLess(time.monotonic() - started, 3.0)
            pinned = [kept for kept in forced["receipt"]["kept"]
                      if "d9" in str(kept) or str(self.failing.pid) in str(kept)]
            self.assertEqual(len(pinned), 1, forced["receipt"]["kept"])
            still = self.failing.blocks() & held
            self.assertTrue(still, (self.failing.blocks(), held))
            self.assertGreaterEqual(pinned[0]["bytes"], len(still) * (2 << 20))
            self.assertEqual(self.mine.blocks(), set())
            self.nobody_holds(held, self.lenient)
        finally:
            self.failing.go_on()
        wait_until(lambda: not self.failing.blocks() & held, 5, "the pins to go")
        self.mine.wake("1")
        self.transfers(None, self.mine, self.failing)
        self.transfers(None, self.mine, self.lenient)

    def test_a_producer_that_stands_still_is_not_waited_for_long(self):
        body = self.body()
        slow = self.start(Instance(self.model, self.config(
            role="kv_consumer", engine_id="d7", policy="fail", pull_timeout=2,
            peers=[f"127.0.0.1:{self.extra_port}"])))
        params = prefill_leg(self.mine, body)
        self.transfers(None, self.mine, slow)
        self.mine.stand_still()
        try:
            started = time.monotonic()
            self.failed_load(decode_leg(slow, body, params, timeout=30))
            self.assertLess(time.monotonic() - started, 8)
            self.ok(slow.sleep("1"))
            slow.wake("1")
        finally:
            self.mine.go_on()
        self.ok(self.mine.sleep("1"))
        self.mine.wake("1")
        self.transfers(None, self.mine, slow)

    def test_a_decoder_sleeps_while_its_producer_stands_still(self):
        self.transfers(None, self.mine, self.failing)
        own, held = self.failing.blocks(), self.mine.blocks()
        self.mine.stand_still()
        try:
            started = time.monotonic()
            self.ok(self.failing.sleep("1", timeout_ms=3000))
            self.assertLess(time.monotonic() - started, 5.0)
            self.assertTrue(own)
            self.assertEqual(self.failing.blocks(), set())
            self.failing.wake("1")
        finally:
            self.mine.go_on()
        self.transfers(None, self.mine, self.failing)
        self.assertTrue(held)

    def test_a_decoder_sleeps_under_a_pull(self):
        for kind in ("1", "kv"):
            with self.subTest(kind):
                body = self.body(300)
                params = prefill_leg(self.mine, body)
                self.mine.stand_still()
                try:
                    asking = Background(lambda body=body, params=params: decode_leg(
                        self.failing, body, params))
                    wait_until(lambda: self.failing.status()["kv_transfer"]["loads"], 5, "a pull under way")
                    own = self.failing.blocks()
                    self.ok(self.failing.sleep(kind))
                    self.assertTrue(own - self.failing.blocks())
                finally:
                    self.mine.go_on()
                (answer,) = asking.join()
                if answer.status == 200:
                    self.assertEqual(answer.json()["choices"][0]["finish_reason"], "abort")
                self.failing.wake(kind)
                self.failing.idle()
                self.mine.idle(35)  # it stood still when the lease was given back: at the latest it expires
                self.transfers(None, self.mine, self.failing)

    def test_clients_that_leave_leave_nothing(self):
        body = self.body(400, max_tokens=1000)
        for pause in (0.0, 0.002, 0.01, 0.05):
            with self.subTest(pause=pause):
                stream = self.mine.stream(path_of(body), {**body, "kv_transfer_params": {
                    "do_remote_decode": True, "do_remote_prefill": False}})
                time.sleep(pause)
                stream.close()
                params = prefill_leg(self.mine, body)
                stream = self.failing.stream(path_of(body), {**body, "kv_transfer_params": params})
                time.sleep(pause)
                stream.close()
                self.failing.idle()
                self.ok(self.failing.post("/reset_prefix_cache"))
        # under a pull that stands still
        params = prefill_leg(self.mine, body)
        self.mine.stand_still()
        try:
            with socket.create_connection(("127.0.0.1", self.failing.port)) as client:
                text = json.dumps({**body, "kv_transfer_params": params}).encode()
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                               b"\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
                wait_until(lambda: self.failing.status()["blocks_used"] > 0, 5, "the request admitted")
        finally:
            self.mine.go_on()
        self.failing.idle(5.0)
        # What the decoder took nothing from ends with its lease at the latest, here with a sleep.
        self.ok(self.mine.sleep("1"))
        self.mine.wake("1")
        self.mine.idle(1.0)


class Leases(Pair):
    EXTRA = {"kv_lease_duration": 1}

    def test_a_lease_that_nobody_takes_expires(self):
        body = self.body()
        expired = self.producer.counter("kv_expired_leases_total")
        params = prefill_leg(self.producer, body)
        self.assertEqual(self.producer.status()["blocks_used"], 7)
        self.producer.idle(4.0)
        self.assertEqual(self.producer.counter("kv_expired_leases_total"), expired + 1)
        before = self.producer.counter("kv_stale_references_refused_total")
        self.is_refused(params, body)
        wait_until(lambda: self.producer.counter("kv_stale_references_refused_total") > before, 2,
                   "a refusal in the metrics")

    def test_a_request_that_waits_keeps_its_lease(self):
        body = self.body()
        params = prefill_leg(self.producer, body)
        self.ok(self.strict.post("/pause"))
        asking = Background(lambda: decode_leg(self.strict, body, params))
        time.sleep(2.5)
        self.assertEqual(self.producer.status()["blocks_used"], 7)
        self.ok(self.strict.post("/resume"))
        (answer,) = asking.join()
        self.right(answer, body)
        self.producer.idle()

    def test_a_decoder_that_dies_waiting_loses_its_leases(self):
        victim = self.start(self.make_decoder("d5", "fail"))
        body = self.body()
        params = prefill_leg(self.producer, body)
        self.ok(victim.post("/pause"))
        def ask():
            with contextlib.suppress(OSError):
                decode_leg(victim, body, params)
        asking = Background(ask)
        time.sleep(0.5)
        victim.kill()
        asking.join(5)
        self.producer.idle(4.0)

    def test_a_sleep_that_waits_for_leases_can_be_cancelled(self):
        lasting = self.start(Instance(self.model, self.config(
            role="kv_producer", engine_id="p7", port=5607, kv_lease_duration=30)))
        body = self.body()
        prefill_leg(lasting, body)
        started = time.monotonic()
        asking = Background(lambda: lasting.sleep("1", mode="wait"))
        wait_until(lambda: lasting.status()["state"] != "running", 5, "a sleep under way")
        time.sleep(0.2)
        lasting.wake("1")
        (answer,) = asking.join()
        self.assertIn(answer.status, (200, 409), answer)
        self.assertLess(time.monotonic() - started, 5.0)
        self.right(lasting.post(path_of(body), body), body)
        self.ok(lasting.sleep("1", mode="wait", timeout_ms=500))
        self.assertLess(time.monotonic() - started, 8.0)

    def test_a_decoder_that_sleeps_gives_its_leases_back(self):
        body = self.body()
        params = prefill_leg(self.producer, body)
        self.ok(self.strict.post("/pause"))
        asking = Background(lambda: decode_leg(self.strict, body, params))
        wait_until(lambda: self.strict.status()["requests_waiting"], 5, "a waiting request")
        self.ok(self.strict.sleep("1", mode="abort"))
        (answer,) = asking.join()
        self.assertNotEqual(answer.status, 500, answer)
        self.producer.idle(3.0)
        self.strict.wake("1")
        self.ok(self.strict.post("/resume"))


class Unlike(Pair):
    """Peers whose caches do not fit are refused with both values, or understood; never guessed."""

    def refused_or_right(self, producer, strict, lenient, *values):
        """Whether it was refused."""
        body = self.body()
        answer = decode_leg(strict, body, prefill_leg(producer, body))
        refused = answer.status != 200
        if refused:
            message = self.failed_load(answer)
            said = message + strict.log()
            for value in values:
                self.assertIn(str(value), said)
        else:
            self.right(answer, body)
        body = self.body()
        answer = decode_leg(lenient, body, prefill_leg(producer, body))
        self.assertEqual(answer.status, 200, answer)
        return refused, essence(answer.json()), body

    def both(self, *flags, model=None):
        return (self.start(self.make_decoder("d3", "fail", *flags, model=model)),
                self.start(self.make_decoder("d4", "recompute", *flags, model=model)))

    def test_another_block_size(self):
        for size in (8, 32):
            with self.subTest(size):
                strict, lenient = self.both("--block-size", size)
                _, found, body = self.refused_or_right(self.producer, strict, lenient, 16, size)
                self.assertEqual(found, single_answer(self.reference, body))
                strict.kill()
                lenient.kill()

    def test_another_architecture(self):
        other = make_model(self.folder / "other.gguf", context=2048, layers=5)
        strict, lenient = self.both(model=other)
        refused, found, body = self.refused_or_right(self.producer, strict, lenient)
        self.assertTrue(refused)
        plain = self.start(Instance(other, self.config(role="kv_consumer", engine_id="d6")))
        self.assertEqual(found, single_answer(plain, body))

    def test_the_same_shape_with_other_weights(self):
        other = other_weights(self.model, self.folder / "weights.gguf")
        strict, lenient = self.both(model=other)
        plain = self.start(Server(other))
        body = self.body()
        self.assertNotEqual(single_answer(plain, body), single_answer(self.reference, body))
        self.failed_load(decode_leg(strict, body, prefill_leg(self.producer, body)))
        answer = self.ok(decode_leg(lenient, body, prefill_leg(self.producer, body)))
        self.assertEqual(essence(answer), single_answer(plain, body))

    def test_they_are_no_harm_to_others(self):
        strict, _ = self.both("--block-size", 8)
        body = self.body()
        decode_leg(strict, body, prefill_leg(self.producer, body))
        self.transfers()


class Routed(Pair):
    """Through the router; the decode side is told to fail where the producer should be used."""

    @classmethod
    def start_class(cls):
        super().start_class()
        cls.router = cls.start_once(Router([cls.producer], [cls.strict]))
        cls.two = cls.start_once(Router([cls.producer], [cls.strict, cls.decoder]))

    def is_known(self, server, state, router=None):
        wait_until(lambda: (router or self.router).state_of(server) == state, 5, f"state {state}")

    def ask(self, body, router=None):
        return (router or self.router).post(path_of(body), body)

    def test_answers_are_those_of_a_single_instance(self):
        for length, stream in itertools.product((1, 15, 16, 17, 40, 200), (False, True)):
            with self.subTest(length=length, stream=stream):
                body = self.body(length)
                before = self.strict.transferred(), self.strict.recomputed()
                if stream:
                    found = streamed_essence(self.router.stream(path_of(body), body))
                    self.assertEqual(found, single_answer(self.reference, body))
                else:
                    self.right(self.ask(body), body)
                if length >= 40:
                    self.assertGreaterEqual(self.strict.transferred() - before[0], 0.95 * length)
                self.assertEqual(self.strict.recomputed(), before[1])

    def test_a_chat_over_the_router(self):
        body = conversation("A question that only the router hears, word by word by word.")
        before = self.strict.transferred()
        self.right(self.ask(body), body)
        self.assertGreater(self.strict.transferred(), before)
        body = conversation("Another question that only the router hears, in a stream.")
        self.assertEqual(streamed_essence(self.router.stream(path_of(body), body)),
                         single_answer(self.reference, body))

    def test_several_answers_and_prompts(self):
        body = self.body(64, n=3, temperature=1.0, seed=5)
        self.right(self.ask(body), body)
        body = completion([prompt(40, next(self.seeds)), prompt(50, next(self.seeds))])
        self.right(self.ask(body), body)

    def test_a_sleeping_producer_is_passed_over(self):
        for kind in KINDS:
            for round_ in range(2):
                with self.subTest(kind=kind, round=round_):
                    self.ok(self.producer.sleep(kind))
                    body = self.body()
                    self.right(self.ask(body), body)
                    self.is_known(self.producer, "asleep")
                    body = self.body()
                    self.right(self.ask(body), body)
                    self.producer.wake(kind)
                    self.is_known(self.producer, "ready")
                    before = self.strict.transferred()
                    body = self.body()
                    self.right(self.ask(body), body)
                    self.assertGreaterEqual(self.strict.transferred() - before, 95)

    def test_a_sleeping_decoder_is_replaced_or_said(self):
        for kind in KINDS:
            for round_ in range(2):
                with self.subTest(kind=kind, round=round_):
                    self.ok(self.strict.sleep(kind))
                    if kind != "kv":  # paused requests wait
                        answer = self.ask(self.body())
                        self.assertEqual(answer.status, 503, answer)
                        self.assertTrue(answer.headers["Retry-After"])
                    self.is_known(self.strict, "asleep", self.two)
                    body = self.body()
                    self.right(self.ask(body, self.two), body)
                    self.strict.wake(kind)
                    self.is_known(self.strict, "ready")
                    body = self.body()
                    self.right(self.ask(body), body)

    def test_both_asleep_and_both_again(self):
        for kind in KINDS:
            for round_ in range(2):
                with self.subTest(kind=kind, round=round_):
                    for server in (self.producer, self.strict):
                        self.ok(server.sleep(kind))
                    if kind != "kv":
                        self.assertEqual(self.ask(self.body()).status, 503)
                    for server in (self.strict, self.producer):
                        server.wake(kind)
                        self.is_known(server, "ready")
                    before = self.strict.transferred()
                    body = self.body()
                    self.right(self.ask(body), body)
                    self.assertGreaterEqual(self.strict.transferred() - before, 95)

    def test_params_of_a_client_are_refused(self):
        body = self.body()
        answer = self.ask({**body, "kv_transfer_params": prefill_leg(self.producer, body)})
        self.assertEqual(answer.status, 400, answer)

    def test_an_unreachable_producer_is_done_without(self):
        router = self.start(Router(["http://127.0.0.1:1", "http://127.0.0.1:2"], [self.strict]))
        body = self.body()
        self.right(self.ask(body, router), body)

    def test_a_decoder_that_forgot_its_peers_computes_and_is_named(self):
        careless = self.start(self.make_decoder("careless", "fail", peers=()))
        router = self.start(Router([self.producer], [careless]))
        for _ in range(2):
            body = self.body()
            self.right(self.ask(body, router), body)
        _, decoder = router.status()["instances"]
        self.assertEqual(decoder["refused_params"], 1, "it is not sent any again for a while")
        self.assertEqual(router.status()["totals"]["prefill_legs"], 1, "nor is anything kept for it")
        self.assertIn("127.0.0.1:5600 is not a configured peer", decoder["warning"])
        self.assertEqual(router.log().count("is not a configured peer"), 1, router.log())

    def test_a_decoder_without_a_connector_computes_and_is_named(self):
        router = self.start(Router([self.producer], [self.reference]))
        body = self.body()
        self.right(self.ask(body, router), body)
        wait_until(lambda: "no KV connector" in router.status()["instances"][1]["warning"], 5, "a warning")
        self.assertEqual(router.log().count("no KV connector"), 1, router.log())

    def test_a_key_that_the_router_lacks_is_not_the_clients_fault(self):
        locked = self.start(Server(self.model, "--api-key", "k", api_key="k"))
        router = self.start(Router([self.producer], [locked], ready=False))
        answer = self.ask(self.body(), router)
        self.assertEqual(answer.status, 502, answer)
        self.assertIn("--backend-api-key", answer.text)
        self.assertEqual(router.state_of(locked), "locked")

    def test_the_command_knows_a_router(self):
        done = subprocess.run([COMMAND, "ctl", "--url", url(self.router), "status"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for server, role in ((self.producer, "prefill"), (self.strict, "decode")):
            self.assertRegex(done.stdout, rf"{url(server)} +{role} +ready")
        done = subprocess.run([COMMAND, "ctl", "--url", url(self.router), "sleep"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertIn(f"this is a router; name an instance: --url {url(self.producer)}", done.stderr)


if __name__ == "__main__":
    unittest.main()
