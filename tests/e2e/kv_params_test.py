#!/usr/bin/env python3
"""What strangers put into kv_transfer_params, into headers and onto the side channel."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import socket
import stat
import struct
import time
import unittest

from harness import LEAKS, Background
from pd import (ASK, COMPLETIONS, Instance, TransferTest, completion, decode_leg, essence, path_of,
                prefill_leg, prompt, single_answer, start_failure, transfer_config)

TEXTS = ("remote_engine_id", "remote_request_id", "remote_host", "lease_token", "remote_incarnation",
         "transfer_mode")
NUMBERS = ("remote_port", "remote_generation", "remote_num_tokens", "tp_size")
FLAGS = ("do_remote_prefill", "do_remote_decode")
NEEDED = ("do_remote_prefill", "remote_engine_id", "remote_request_id", "remote_host", "remote_port",
          "remote_block_ids", "lease_token", "remote_incarnation", "remote_generation", "remote_num_tokens")
# As they stand in JSON, so that numbers beyond Python's floats get through as well.
HUGE = ("2147483648", "9007199254740993", "18446744073709551616", "1e308", "1" + "0" * 400)
NOT_TEXT = ("1", "-1", "0", "1.5", "true", "[]", "{}", '["p0"]', *HUGE)
NOT_NUMBER = ('"5600"', "true", "[]", "{}", "[1]", '""', "-1", "1.5", "18446744073709551616", "1e308",
              "1" + "0" * 400)
NOT_FLAG = ('"true"', "1", "0", "[]", "{}", "1.0")
NOT_BLOCKS = ("1", '"0"', "true", "{}", '["0"]', "[[\"0\"]]", "[[true]]", "[[[0]]]", "[[-1]]", "[[1.5]]",
              "[[18446744073709551616]]", "[[1e308]]", "[[{}]]", "[[null]]", "[[0],1]", "[null]")
STRANGE_BLOCKS = ("[]", "[[]]", "[[],[]]", "[[0],[0]]", "[[0,0,0]]", "[[2147483648]]", "[[4294967296]]",
                  "[[9007199254740993]]", "[[99999]]", json.dumps([list(range(3000))]))
TIMEOUT = 20.0


class Strangers(TransferTest):
    """Each test ends with a plain request and a whole transfer: nothing has been harmed."""

    @classmethod
    def start_class(cls):
        ipc_dir = str(cls.folder / "ipc")
        cls.producer = cls.start_once(Instance(cls.model, transfer_config(
            role="kv_producer", engine_id="p0", port=5600, ipc_dir=ipc_dir, kv_lease_duration=20)))
        def decoder(engine_id, policy):
            return cls.start_once(Instance(cls.model, transfer_config(
                role="kv_consumer", engine_id=engine_id, policy=policy, ipc_dir=ipc_dir,
                peers=["127.0.0.1:5600"], pull_timeout=5)))
        cls.lenient, cls.strict = decoder("d0", "recompute"), decoder("d1", "fail")
        cls.decoders = (cls.lenient, cls.strict)

    def setUp(self):
        self.addCleanup(self.unharmed)

    def unharmed(self):
        for server in (self.producer, *self.decoders):
            server.alive()
            body = self.body(20)
            self.right(server.post(path_of(body), body), body)
        for decoder in self.decoders:
            body = self.body(60)
            before = decoder.transferred()
            self.right(decode_leg(decoder, body, prefill_leg(self.producer, body)), body)
            self.assertGreaterEqual(decoder.transferred() - before, 57)
            decoder.idle()
        self.producer.sleep("kv")  # ends the leases that strangers could not take
        self.producer.wake("kv")
        self.producer.idle()

    def send(self, server, body, params):
        """The status; an answer of 200 is the right one, an error is one that clients can parse."""
        text = json.dumps(body)[:-1] + f', "kv_transfer_params": {params}}}'
        answer = server.post(path_of(body), text, timeout=TIMEOUT)
        if answer.status == 200:
            self.assertEqual(essence(answer.json()), self.expected(body), params)
        else:
            self.assertIn(answer.status, (400, 502), (params, answer))
            self.assertTrue(answer.json()["error"]["message"])
            self.assertNotRegex(answer.text, LEAKS)
        return answer.status

    def expected(self, body):
        key = json.dumps(body)
        self.known = getattr(self, "known", {})
        if key not in self.known:
            self.known[key] = single_answer(self.reference, body)
        return self.known[key]

    def short(self, length=20):
        return self.body(length, max_tokens=2)

    def replaced(self, params, key, text):
        return json.dumps({**params, key: "HERE"}).replace('"HERE"', text)


class Params(Strangers):
    # --- malformed
    def test_a_wrong_type_is_refused(self):
        body = self.short()
        params = prefill_leg(self.producer, body)
        wrong = [(key, text) for keys, texts in ((TEXTS, NOT_TEXT), (NUMBERS, NOT_NUMBER),
                                                 (FLAGS, NOT_FLAG), (("remote_block_ids",), NOT_BLOCKS))
                 for key, text in itertools.product(keys, texts)]
        taken = []
        for key, text in wrong:
            status = self.send(self.strict, body, self.replaced(params, key, text))
            if status != 400:
                taken.append((key, text[:30], status))
        self.assertEqual(taken, [])

    def test_what_is_no_object_is_refused(self):
        for text in ("1", '"x"', "true", "[]", "[{}]", '"{}"'):
            with self.subTest(text):
                self.assertEqual(self.send(self.strict, self.short(), text), 400)

    def test_null_is_the_same_as_absent(self):
        body = self.short()
        self.assertEqual(self.send(self.strict, body, "null"), 200)
        self.assertEqual(self.send(self.strict, body, "{}"), 200)
        self.assertEqual(self.send(self.strict, body, json.dumps(dict.fromkeys(ASK))), 200)

    def test_unknown_keys_are_ignored(self):
        body = self.short()
        params = prefill_leg(self.producer, body)
        self.assertEqual(self.send(self.strict, body, json.dumps({**params, "x": [1], "remote_y": {}})), 200)

    def test_every_subset_is_answered(self):
        """Parts of a reference are malformed, or no reference: then the prompt is computed."""
        body = self.short()
        params = prefill_leg(self.producer, body)
        others = {key: value for key, value in params.items() if key not in NEEDED}
        found = {}
        for chosen in itertools.product((False, True), repeat=len(NEEDED)):
            keys = [key for key, choice in zip(NEEDED, chosen, strict=True) if choice]
            if len(keys) == len(NEEDED):
                continue
            text = json.dumps({**others, **{key: params[key] for key in keys}})
            status = self.send(self.lenient, body, text)
            found[status] = found.get(status, 0) + 1
            if "do_remote_prefill" not in keys:
                self.assertEqual(status, 200, keys)
        self.assertLessEqual(set(found), {200, 400}, found)

    def test_the_asking_side_is_checked_as_well(self):
        for text in ('{"do_remote_decode": 1}', '{"do_remote_decode": "true"}',
                     '{"do_remote_decode": true, "remote_block_ids": 5}',
                     '{"do_remote_decode": true, "remote_port": -1}'):
            with self.subTest(text):
                self.assertEqual(self.send(self.producer, self.short(), text), 400)
        both = self.send(self.producer, self.short(), '{"do_remote_decode":true,"do_remote_prefill":true}')
        self.assertIn(both, (200, 400))

    # --- well-formed, but not what the owner gave out
    def foreign(self, length=20, **changes):
        body = self.short(length)
        params = prefill_leg(self.producer, body)
        return body, {**params, **changes}

    def test_what_the_owner_did_not_give_out_is_refused(self):
        mine, theirs = self.foreign(100), self.foreign(100)
        changes = [{"lease_token": token} for token in ("", "x", "0" * 32, "f" * 10_000,
                                                       theirs[1]["lease_token"])]
        changes += [{"remote_generation": number} for number in (0, 2, 2**31, 2**53 + 1)]
        changes += [{"remote_incarnation": text} for text in ("", "x", "0" * 32, "é" * 40)]
        changes += [{"remote_engine_id": text} for text in ("", "p1", "d0", "../p0", "p0\x00")]
        changes += [{"remote_request_id": text} for text in ("", "99999", "-1", "x" * 10_000,
                                                            theirs[1]["remote_request_id"])]
        changes += [{"remote_block_ids": theirs[1]["remote_block_ids"]},
                    {"remote_block_ids": [[0, 1, 2, 3, 4, 5, 6]]},
                    {"remote_block_ids": [mine[1]["remote_block_ids"][0][::-1]]},
                    {"remote_block_ids": [mine[1]["remote_block_ids"][0][:-1] + [2047]]},
                    {"remote_block_ids": [[9_000] * 7]}]
        changes += [{"remote_num_tokens": number} for number in (113, 2**31)]
        for change in changes:
            with self.subTest(str(change)[:80]):
                body, params = self.foreign(100)
                if "remote_block_ids" in change and change["remote_block_ids"] == params["remote_block_ids"]:
                    continue
                text = json.dumps({**params, **change})
                self.assertIn(self.send(self.strict, body, text), (400, 502))
                self.assertIn(self.send(self.lenient, body, text), (400, 200))
                self.producer.sleep("kv")
                self.producer.wake("kv")

    def test_counts_that_are_wrong_are_no_harm(self):
        for key, number in itertools.product(("remote_num_tokens", "tp_size"), (0, 1, 2, 99, 101, 2**31)):
            with self.subTest(key=key, number=number):
                body, params = self.foreign(100)
                self.send(self.lenient, body, json.dumps({**params, key: number}))
                self.send(self.strict, body, json.dumps({**params, key: number}))

    def test_strange_blocks_are_refused(self):
        body, params = self.foreign(40)
        for text in STRANGE_BLOCKS:
            with self.subTest(text[:40]):
                self.assertIn(self.send(self.strict, body, self.replaced(params, "remote_block_ids", text)),
                              (400, 502))

    def test_an_address_that_is_no_peer_is_never_dialled(self):
        with socket.create_server(("127.0.0.1", 0)) as trap:
            trap.settimeout(0.3)
            port = trap.getsockname()[1]
            body, params = self.foreign()
            for change in ({"remote_port": port}, {"remote_host": "127.0.0.2"},
                           {"remote_host": "localhost", "remote_port": port},
                           {"remote_host": "../../trap"}, {"remote_host": "192.0.2.1"},
                           {"remote_host": ""}, {"remote_port": 0}, {"remote_port": 65536},
                           {"remote_port": 2**31}):
                with self.subTest(change):
                    started = time.monotonic()
                    self.assertEqual(self.send(self.strict, body, json.dumps({**params, **change})), 400)
                    self.assertLess(time.monotonic() - started, 2.0)
            for value in (f"___prefill_addr_127.0.0.1:{port}___decode_addr_127.0.0.1:{port}_1",
                          f"http://127.0.0.1:{port}/", "../../x", "%00"):
                with self.subTest(value):
                    leg = self.short()
                    answer = decode_leg(self.strict, leg, prefill_leg(
                        self.producer, leg, headers={"X-Request-Id": value}), headers={"X-Request-Id": value})
                    self.right(answer, leg)
            with self.assertRaises(TimeoutError):
                trap.accept()

    # --- requests that share or multiply
    def test_the_same_request_id_twice(self):
        header = {"X-Request-Id": "twice"}
        bodies = [self.body(50), self.body(50)]
        params = [prefill_leg(self.producer, body, headers=header) for body in bodies]
        answers = Background(*(lambda i=i: decode_leg(self.strict, bodies[i], params[i], headers=header)
                               for i in range(2))).join()
        for answer, body in zip(answers, bodies, strict=True):
            self.right(answer, body)

    def test_the_same_reference_by_many_at_once(self):
        """One may have it; the others compute, or fail, or find the first one's blocks."""
        body = self.body(100)
        params = prefill_leg(self.producer, body)
        answers = Background(*[lambda: decode_leg(self.lenient, body, params)] * 6).join()
        for answer in answers:
            self.right(answer, body)
        self.producer.idle()

    def test_several_answers_to_one_prompt(self):
        for n in (2, 3):
            body = self.body(100, n=n, temperature=1.0, seed=3)
            before = self.strict.transferred()
            self.right(decode_leg(self.strict, body, prefill_leg(self.producer, body)), body)
            self.assertGreaterEqual(self.strict.transferred() - before, 95)
            self.strict.idle()
            self.producer.idle()

    def test_several_prompts_at_once(self):
        """One reference cannot stand for two prompts: refused or computed, and nothing is left."""
        body = completion([prompt(40, next(self.seeds)), prompt(40, next(self.seeds))])
        one = completion(body["prompt"][0])
        params = prefill_leg(self.producer, one)
        for decoder in self.decoders:
            answer = decode_leg(decoder, body, params)
            if answer.status == 200:
                self.right(answer, body)
            else:
                self.assertIn(answer.status, (400, 502), answer)
            decoder.idle()
        for ask in ({**body, "max_tokens": 1}, {**one, "n": 3, "max_tokens": 1}):
            leg = self.producer.post(COMPLETIONS, {**ask, "kv_transfer_params": ASK})
            self.assertIn(leg.status, (200, 400), leg)

    def test_many_legs_that_nobody_takes_do_not_block_others(self):
        for _ in range(40):
            prefill_leg(self.producer, self.body(16, max_tokens=1))
        body = self.body(100)
        self.right(self.producer.post(COMPLETIONS, body), body)

    def test_references_do_not_fill_the_cache_for_good(self):
        """Leases may hold the whole cache until they expire: others wait or are told, and then go on."""
        small = self.start(Instance(self.model, transfer_config(
            role="kv_producer", engine_id="p3", port=5603, ipc_dir=str(self.folder / "ipc"),
            kv_lease_duration=1), "--kv-cache-memory-bytes", "200K"))
        for _ in range(6):
            leg = small.post(COMPLETIONS, {**self.body(100, max_tokens=1), "kv_transfer_params": ASK},
                             timeout=TIMEOUT)
            self.assertIn(leg.status, (200, 503), leg)
        small.idle(5.0)
        body = self.body(100)
        self.right(small.post(COMPLETIONS, body), body)


class SideChannel(Strangers):
    """Whoever reaches the sockets without knowing the token reaches nothing else."""

    def sockets(self):
        found = sorted((self.folder / "ipc").glob("*.sock"))
        self.assertGreaterEqual(len(found), 2)
        return found

    def frames(self):
        """Bytes that are no frame, half a frame, and frames with a wrong token."""
        hello = packed({"token": "0" * 32, "type": "meta"})
        yield b""
        yield b"\x00"
        yield b"GET / HTTP/1.1\r\n\r\n"
        for size in (0, 1, 100, 2**31 - 1, 2**32 - 1):
            for layout in ("<I", ">I"):
                yield struct.pack(layout, size)
                yield struct.pack(layout, size) + b"\xc1" * min(size, 200)
        for layout in ("<I", ">I"):
            for body in (hello, hello[:-5], packed({"token": ""}), packed({"token": 5}), b"\x80", b"\xc0",
                         b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
                         b"\x91" * 5000, packed({"token": "x" * 5000}), packed({"import": "0" * 32}),
                         packed({"type": "pull", "lease": 1, "token": "0" * 32})):
                yield struct.pack(layout, len(body)) + body
        yield os.urandom(100_000)

    def test_junk_on_the_sockets_harms_nobody(self):
        for path in self.sockets():
            for junk in self.frames():
                with contextlib.closing(socket.socket(socket.AF_UNIX)) as peer:
                    peer.settimeout(0.05)
                    peer.connect(str(path))
                    with contextlib.suppress(OSError):
                        peer.sendall(junk)
                        received = peer.recv(65536)
                        self.assertLess(len(received), 1000, received[:200])
                        for secret in self.secrets():
                            self.assertNotIn(secret, received)

    def secrets(self):
        return [text.encode() for text in (self.token(),) if text]

    def token(self):
        path = self.folder / "ipc" / "token"
        return path.read_text().strip() if path.exists() else ""

    def test_descriptors_sent_by_strangers_are_closed(self):
        def count():
            return len(os.listdir(f"/proc/{self.producer.pid}/fd"))
        before = count()
        with open("/dev/null") as nothing:
            for path in self.sockets():
                for _ in range(20):
                    with contextlib.closing(socket.socket(socket.AF_UNIX)) as peer:
                        peer.connect(str(path))
                        with contextlib.suppress(OSError):
                            socket.send_fds(peer, [b"\x05\x00\x00\x00junk!"], [nothing.fileno()] * 8)
        end = time.monotonic() + 5
        while count() > before + 2 and time.monotonic() < end:
            time.sleep(0.05)
        self.assertLessEqual(count(), before + 2)

    def test_those_who_connect_and_say_nothing_hold_up_nobody(self):
        with contextlib.ExitStack() as stack:
            for path in self.sockets():
                for _ in range(40):
                    peer = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
                    peer.settimeout(2.0)
                    with contextlib.suppress(OSError):
                        peer.connect(str(path))
            body = self.body(100)
            started = time.monotonic()
            self.right(decode_leg(self.lenient, body, prefill_leg(self.producer, body)), body)
            self.assertLess(time.monotonic() - started, 15.0)
            answer = self.producer.sleep("1", timeout_ms=3000)
            self.assertEqual(answer.status, 200, answer)
            self.producer.wake("1")

    def test_others_may_not_open_the_files(self):
        folder = self.folder / "ipc"
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode) & 0o077, 0)
        for path in folder.iterdir():
            self.assertEqual(stat.S_IMODE(path.stat().st_mode) & 0o077, 0, path.name)

    def test_a_folder_that_others_may_write_is_not_trusted(self):
        folder = self.folder / "open"
        folder.mkdir()
        folder.chmod(0o777)
        config = transfer_config(role="kv_producer", engine_id="p4", port=5604, ipc_dir=str(folder))
        self.assertIn("open", start_failure(self.model, config))

    def test_two_engines_on_one_port_are_refused(self):
        config = transfer_config(role="kv_producer", engine_id="p5", port=5600,
                                 ipc_dir=str(self.folder / "ipc"))
        self.assertIn("5600", start_failure(self.model, config))

    def test_nothing_listens_on_tcp_but_http(self):
        for server in (self.producer, *self.decoders):
            self.assertEqual(listening_ports(server.pid), {server.port})


def listening_ports(pid):
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rsplit(":", 1)[1], 16))
    return found


def packed(value):
    """As much MessagePack as the frames above need."""
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(packed(k) + packed(v) for k, v in value.items())
    if isinstance(value, int):
        return bytes([value])
    text = value.encode()
    return (bytes([0xD9, len(text)]) if len(text) < 256 else b"\xda" + struct.pack(">H", len(text))) + text


class WithoutConnector(TransferTest):
    def test_params_are_ignored_with_a_word(self):
        body = self.body(20)
        self.right(self.reference.post(COMPLETIONS, {**body, "kv_transfer_params": {
            "do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 5600}}), body)
        self.assertIn("no KVConnector found", self.reference.log())


if __name__ == "__main__":
    unittest.main()
