#!/usr/bin/env python3
"""Blocks kept in host memory, on disk and in shared folders: they come back, or they are computed."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import unittest

from harness import Background, Server, make_model, wait_until
from pd import (COMPLETIONS, Instance, TransferTest, cached_tokens, completion, decode_leg, essence,
                other_weights, path_of, prefill_leg, prompt, single_answer, start_failure, transfer_config)

LENGTH = 200
WHOLE = LENGTH // 16 * 16  # tokens in whole blocks


class TierTest(TransferTest):
    def tier(self, *flags, model=None, connector="OffloadingConnector", **extra):
        return self.start(Instance(model or self.model, transfer_config(connector, **extra), *flags))

    def ask(self, server, body):
        """The right answer, and how many tokens the connector brought."""
        before = server.transferred()
        self.right(server.post(path_of(body), body), body)
        return server.transferred() - before

    def is_stored(self, server, body):
        """Asked once; the copies are made behind the answer's back, so the next one may have to wait."""
        self.assertEqual(self.ask(server, body), 0)
        server.idle()

    def comes_back(self, server, body, forget="reset_prefix_cache"):
        self.forget(server, forget)
        self.assertGreaterEqual(self.ask(server, body), WHOLE - 16)

    def forget(self, server, how):
        if how == "reset_prefix_cache":
            server.idle()  # blocks that are being copied cannot be forgotten
            self.assertTrue(self.ok(server.post("/reset_prefix_cache"))["success"])
        else:
            self.ok(server.sleep(how))
            server.wake(how)


class HostMemory(TierTest):
    EXTRA = {"cpu_bytes_to_use": 8 << 20}

    def test_a_prefix_survives_every_sleep(self):
        server = self.tier(**self.EXTRA)
        bodies = [self.body(LENGTH) for _ in range(3)]
        for body in bodies:
            self.is_stored(server, body)
        for kind in ("1", "2", "kv", "1", "2", "kv"):
            with self.subTest(kind):
                self.forget(server, kind)
                for body in bodies:
                    self.assertGreaterEqual(self.ask(server, body), WHOLE - 16)

    def test_a_long_conversation_goes_on_after_a_sleep(self):
        server = self.tier(**self.EXTRA)
        tokens = prompt(100, next(self.seeds))
        for _ in range(4):
            body = completion(tokens, max_tokens=40)
            answer = self.ok(server.post(COMPLETIONS, body))
            tokens = tokens + answer["choices"][0]["token_ids"] + prompt(30, next(self.seeds))
            server.idle()
            self.forget(server, "1")
        self.assertGreaterEqual(self.ask(server, completion(tokens)), 200)

    def test_a_sleep_right_behind_the_answer_loses_nothing_but_copies(self):
        server = self.tier(**self.EXTRA)
        for kind in ("1", "kv", "2") * 3:
            body = self.body(600, max_tokens=1)
            self.right(server.post(COMPLETIONS, body), body)
            self.forget(server, kind)
            self.ask(server, body)

    def test_sleeps_in_the_middle_of_everything_leave_right_answers(self):
        server = self.tier(**self.EXTRA)
        bodies = [self.body(300) for _ in range(4)]
        def ask(body):
            for _ in range(6):
                answer = server.post(COMPLETIONS, body)
                if answer.status == 200 and answer.json()["choices"][0]["finish_reason"] == "length":
                    self.right(answer, body)
                else:
                    self.assertIn(answer.status, (200, 503), answer)
        asking = Background(*(lambda body=body: ask(body) for body in bodies))
        for kind in ("1", "kv", "2") * 2:
            self.forget(server, kind)
        asking.join()
        server.idle()

    def test_a_tier_too_small_for_all_keeps_some_and_harms_none(self):
        server = self.tier(cpu_bytes_to_use=100_000)
        bodies = [self.body(LENGTH) for _ in range(6)]
        for _ in range(2):
            for body in bodies:
                self.ask(server, body)
            self.forget(server, "reset_prefix_cache")
        self.assertGreater(self.ask(server, bodies[-1]), 0)

    def test_salts_do_not_share(self):
        server = self.tier(**self.EXTRA)
        body = self.body(LENGTH)
        salted = {**body, "cache_salt": "mine"}
        self.is_stored(server, salted)
        self.forget(server, "reset_prefix_cache")
        for other in (body, {**body, "cache_salt": "yours"}):
            answer = server.post(COMPLETIONS, other)
            self.right(answer, body)
            self.assertEqual(cached_tokens(answer), 0)
        self.assertEqual(server.transferred(), 0)
        self.forget(server, "reset_prefix_cache")
        self.assertGreaterEqual(self.ask(server, salted), WHOLE - 16)

    def test_other_weights_find_nothing_of_the_old_ones(self):
        for connector, extra in (("OffloadingConnector", self.EXTRA),
                                 ("ExampleConnector", {"shared_storage_path": str(self.folder / "files")})):
            with self.subTest(connector):
                model = pathlib.Path(shutil.copy(self.model, self.folder / "trained.gguf"))
                server = self.tier(model=model, connector=connector, **extra)
                body = self.body(LENGTH)
                self.is_stored(server, body)
                self.comes_back(server, body)
                self.ok(server.sleep("2"))
                new = self.start(Server(other_weights(model, model)))
                server.wake("2")
                before = server.transferred()
                found = self.ok(server.post(COMPLETIONS, body))
                self.assertEqual(essence(found), single_answer(new, body))
                self.assertNotEqual(essence(found), single_answer(self.reference, body))
                self.assertEqual(server.transferred(), before)

    def test_asleep_the_device_holds_nothing_for_the_tier(self):
        server = self.tier(**self.EXTRA)
        self.is_stored(server, self.body(LENGTH))
        self.ok(server.sleep("1"))
        self.assertEqual(server.blocks(), set())
        server.wake("1")


class Disk(TierTest):
    def setUp(self):
        self.disk = self.folder / f"disk{next(self.seeds)}"

    def on_disk(self, *flags, path=None, **extra):
        return self.tier(*flags, cpu_bytes_to_use=1 << 20, disk_path=str(path or self.disk),
                         disk_bytes=16 << 20, **extra)

    def files(self):
        return sorted(path for path in self.disk.rglob("*") if path.is_file())

    def bytes_on_disk(self):
        total = 0
        for path in self.files():
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                total += path.stat().st_size
        return total

    def filled(self, count=2):
        """A stopped server's folder, and the requests whose blocks lie there."""
        server = self.on_disk()
        bodies = [self.body(LENGTH) for _ in range(count)]
        for body in bodies:
            self.is_stored(server, body)
        wait_until(lambda: len(self.files()) >= count * (LENGTH // 16), 5, "files on the disk")
        self.assertEqual(server.stop(), 0)
        return bodies

    def test_a_prefix_survives_the_process(self):
        bodies = self.filled()
        server = self.on_disk()
        for body in bodies:
            self.assertGreaterEqual(self.ask(server, body), WHOLE - 16)
        self.forget(server, "1")
        self.comes_back(server, bodies[0])

    def test_a_killed_process_leaves_nothing_wrong(self):
        server = self.on_disk()
        bodies = [self.body(LENGTH) for _ in range(4)]
        asking = Background(*(lambda body=body: self.suppressed(server, body) for body in bodies))
        wait_until(lambda: self.files(), 10, "a first file")
        server.kill()
        asking.join()
        again = self.on_disk()
        for body in bodies:
            self.ask(again, body)

    def suppressed(self, server, body):
        with contextlib.suppress(OSError):
            server.post(COMPLETIONS, body)

    def spoiled(self, spoil):
        """Every file treated so: no answer is wrong, nothing of them is loaded, and the tier goes on."""
        bodies = self.filled()
        files = self.files()
        self.assertTrue(files)
        for path in files:
            spoil(path)
        server = self.on_disk()
        for body in bodies:
            self.assertEqual(self.ask(server, body), 0)
        server.idle()
        self.forget(server, "reset_prefix_cache")
        new = self.body(LENGTH)
        self.is_stored(server, new)
        self.comes_back(server, new)
        return server

    def test_truncated_files_are_misses(self):
        size = max(path.stat().st_size for path in self.kept_example())
        for length in (0, 7, 64, size // 2, size - 1):
            with self.subTest(length):
                self.disk = self.folder / f"cut{length}"
                server = self.spoiled(lambda path, length=length: os.truncate(path, min(
                    length, path.stat().st_size - 1)))
                server.kill()

    def kept_example(self):
        self.filled(1)
        return self.files()

    def test_longer_files_are_misses(self):
        self.spoiled(lambda path: path.write_bytes(path.read_bytes() + b"more"))

    def test_flipped_bits_are_misses(self):
        size = max(path.stat().st_size for path in self.kept_example())
        for at in (0, 5, 40, size - 1):
            with self.subTest(at):
                self.disk = self.folder / f"flip{at}"
                def flip(path, at=at):
                    data = bytearray(path.read_bytes())
                    data[min(at, len(data) - 1)] ^= 0x10
                    path.write_bytes(data)
                self.spoiled(flip).kill()

    def test_foreign_files_are_misses(self):
        self.spoiled(lambda path: path.write_bytes(b"#!/bin/sh\nexit 0\n"))

    def test_another_blocks_file_is_a_miss(self):
        """Each file under its neighbour's name: whole and valid, but not what was asked for."""
        bodies = self.filled()
        files = self.files()
        contents = [path.read_bytes() for path in files]
        for path, data in zip(files, contents[1:] + contents[:1], strict=True):
            path.write_bytes(data)
        server = self.on_disk()
        for body in bodies:
            self.assertEqual(self.ask(server, body), 0)

    def test_folders_and_pipes_in_place_of_files_are_misses(self):
        for make in (os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            with self.subTest(make):
                bodies = self.filled(1)
                for path in self.files():
                    path.unlink()
                    make(path)
                server = self.on_disk()
                self.assertEqual(self.ask(server, bodies[0]), 0)
                server.kill()
                shutil.rmtree(self.disk)

    def test_files_that_vanish_are_misses(self):
        bodies = self.filled()
        server = self.on_disk()
        for path in self.files():
            path.unlink()
        for body in bodies:
            self.assertEqual(self.ask(server, body), 0)

    def test_a_folder_that_vanishes_is_missed_by_nobody(self):
        server = self.on_disk()
        self.is_stored(server, self.body(LENGTH))
        gone = self.disk.rename(self.folder / "gone")
        shutil.rmtree(gone, ignore_errors=True)
        for _ in range(3):
            self.ask(server, self.body(LENGTH))
        server.idle()

    def test_another_models_files_are_misses(self):
        bodies = self.filled()
        other = other_weights(self.model, self.folder / "other.gguf")
        deeper = make_model(self.folder / "deeper.gguf", context=2048, layers=4)
        for model in (other, deeper):
            with self.subTest(model.name):
                plain = self.start(Server(model))
                server = self.on_disk(model=model)
                for body in bodies:
                    self.assertEqual(server.text(**body), plain.text(**body))
                self.assertEqual(server.transferred(), 0)
                plain.kill()
                server.kill()

    def test_another_block_size_is_a_miss(self):
        bodies = self.filled()
        server = self.on_disk("--block-size", 32)
        for body in bodies:
            self.assertEqual(self.ask(server, body), 0)

    def test_a_folder_that_may_not_be_written(self):
        bodies = self.filled()
        mounted = subprocess.run(["mount", "--bind", "-o", "ro", self.disk, self.disk], capture_output=True)
        if mounted.returncode:
            self.skipTest("may not mount")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)
        remounted = subprocess.run(["mount", "-o", "remount,ro,bind", self.disk], capture_output=True)
        if remounted.returncode:
            self.skipTest("may not mount read-only")
        server = self.on_disk()
        self.assertGreaterEqual(self.ask(server, bodies[0]), WHOLE - 16)
        for _ in range(2):
            self.ask(server, self.body(LENGTH))
        server.idle()

    def test_a_full_disk_is_done_without(self):
        self.disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", self.disk],
                                 capture_output=True)
        if mounted.returncode:
            self.skipTest("may not mount")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)
        server = self.on_disk()
        bodies = [self.body(400) for _ in range(8)]
        for _ in range(2):
            for body in bodies:
                self.ask(server, body)
            server.idle()
            self.forget(server, "reset_prefix_cache")
        self.ok(server.sleep("1"))
        server.wake("1")
        server.kill()
        again = self.on_disk()
        for body in bodies:
            self.ask(again, body)

    def test_two_engines_share_a_folder(self):
        servers = [self.on_disk(), self.on_disk()]
        bodies = [self.body(LENGTH) for _ in range(3)]
        Background(*(lambda server=server, body=body: self.ask(server, body)
                     for server in servers for body in bodies)).join()
        for server in servers:
            server.idle()
            for body in bodies:
                self.comes_back(server, body)

    def test_memory_in_front_of_the_disk(self):
        server = self.tier(cpu_bytes_to_use=100_000, disk_path=str(self.disk), disk_bytes=16 << 20)
        bodies = [self.body(LENGTH) for _ in range(5)]
        for count, body in enumerate(bodies, 1):
            self.is_stored(server, body)
            wait_until(lambda count=count: len(self.files()) >= count * (LENGTH // 16), 5, "files")
        for body in bodies:
            self.comes_back(server, body, "1")

    def test_the_disk_holds_no_more_than_it_may(self):
        server = self.tier(cpu_bytes_to_use=100_000, disk_path=str(self.disk), disk_bytes=150_000)
        for _ in range(8):
            self.ask(server, self.body(LENGTH))
        server.idle()
        wait_until(lambda: self.bytes_on_disk() <= 160_000, 5, "evictions")
        self.assertTrue(self.files())


class Shared(TierTest):
    """ExampleConnector: files in a folder that engines share."""

    def shared(self, path):
        return self.tier(connector="ExampleConnector", shared_storage_path=str(path))

    def test_one_computes_and_the_other_loads(self):
        path = self.folder / "shared"
        first, second = self.shared(path), self.shared(path)
        body = self.body(LENGTH)
        self.is_stored(first, body)
        self.assertGreaterEqual(self.ask(second, body), WHOLE - 16)
        for kind in ("1", "2", "kv"):
            self.forget(second, kind)
            self.assertGreaterEqual(self.ask(second, body), WHOLE - 16)

    def test_spoiled_files_harm_nobody(self):
        path = self.folder / "spoiled"
        first = self.shared(path)
        body = self.body(LENGTH)
        self.is_stored(first, body)
        files = [file for file in path.rglob("*") if file.is_file()]
        self.assertTrue(files)
        for number, file in enumerate(files):
            data = file.read_bytes()
            file.write_bytes((b"", data[:len(data) // 2], data[:-1], b"x" * len(data))[number % 4])
        self.ask(self.shared(path), body)
        shutil.rmtree(path)
        self.forget(first, "reset_prefix_cache")
        self.ask(first, body)


class Several(TierTest):
    """MultiConnector of a pull and a tier."""

    def multi(self, role, port, policy="fail", peers=()):
        children = [{"kv_connector": "IpcConnector", "kv_role": role, "kv_port": port,
                     "kv_connector_extra_config": {"ipc_dir": str(self.folder / "ipc"), "peers": list(peers)}},
                    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                     "kv_connector_extra_config": {"cpu_bytes_to_use": 8 << 20}}]
        return self.start(Instance(self.model, transfer_config(
            "MultiConnector", role, engine_id=f"m{port}", policy=policy, connectors=children)))

    def test_both_children_do_their_work_around_sleeps(self):
        producer = self.multi("kv_producer", 5700)
        decoder = self.multi("kv_consumer", 5701, peers=["127.0.0.1:5700"])
        for kind in ("1", "2", "kv"):
            with self.subTest(kind):
                body = self.body(LENGTH)
                before = decoder.transferred()
                self.right(decode_leg(decoder, body, prefill_leg(producer, body)), body)
                self.assertGreaterEqual(decoder.transferred() - before, 0.95 * LENGTH)
                producer.idle()
                decoder.idle()
                self.forget(decoder, kind)
                self.assertGreaterEqual(self.ask(decoder, body), WHOLE - 16)
                self.forget(producer, kind)
                held = producer.blocks()
                self.assertTrue(held)

    def test_params_of_both_children_are_told_apart(self):
        producer = self.multi("kv_producer", 5702)
        params = prefill_leg(producer, self.body(40))
        self.assertEqual(params["remote_port"], 5702)


class Refused(TierTest):
    def refusal(self, config):
        text = start_failure(self.model, config, seconds=2)
        self.assertNotIn("another process", text)
        return text

    def test_an_unknown_connector_is_named_with_those_that_exist(self):
        text = self.refusal(transfer_config("NixlConnectr"))
        self.assertIn("Unsupported connector type: NixlConnectr", text)
        for name in ("IpcConnector", "OffloadingConnector", "ExampleConnector", "MultiConnector"):
            self.assertIn(name, text)

    def test_what_is_not_understood_is_refused_by_name(self):
        ipc = {"ipc_dir": str(self.folder / "ipc")}
        for words, config in (
                (["kv_role"], transfer_config(role="kv_nobody", **ipc)),
                (["kv_port"], transfer_config(port=70000, **ipc)),
                (["kv_port"], transfer_config(port=-1, **ipc)),
                (["kv_load_failure_policy"], transfer_config(policy="ignore", **ipc)),
                (["kv_lease_duration"], transfer_config(kv_lease_duration=-1, **ipc)),
                (["kv_lease_duration"], transfer_config(kv_lease_duration="30", **ipc)),
                (["peers"], transfer_config(peers="127.0.0.1:5600", **ipc)),
                (["peers"], transfer_config(peers=["nonsense"], **ipc)),
                (["pull_timeout"], transfer_config(pull_timeout=0, **ipc)),
                (["cpu_bytes_to_use"], transfer_config("OffloadingConnector", cpu_bytes_to_use=-1)),
                (["cpu_bytes_to_use"], transfer_config("OffloadingConnector", cpu_bytes_to_use="8")),
                (["disk_bytes"], transfer_config("OffloadingConnector", disk_path=str(self.folder),
                                                 disk_bytes=-1)),
                (["shared_storage_path"], transfer_config("ExampleConnector")),
                (["connectors"], transfer_config("MultiConnector")),
                (["connectors"], transfer_config("MultiConnector", connectors=[])),
                (["connectors"], transfer_config("MultiConnector", connectors={})),
                (["Unsupported connector type: Nobody"], transfer_config(
                    "MultiConnector", connectors=[{"kv_connector": "Nobody", "kv_role": "kv_both"}])),
                (["Connector name is not set in KVTransferConfig"], {"kv_role": "kv_both"}),
                (["kv_connector_module_path"], transfer_config("Mine", module="")),
                (["nowhere.so"], transfer_config("Mine", module="nowhere.so"))):
            with self.subTest(words=words, config=config):
                text = self.refusal(config)
                for word in words:
                    self.assertIn(word, text)

    def test_a_config_that_is_no_object_is_refused(self):
        for text in ("x", "[]", "5", '"IpcConnector"', "{", '{"kv_connector":5}',
                     '{"kv_connector":"IpcConnector","kv_connector_extra_config":[]}'):
            with self.subTest(text):
                self.assertIn("--kv-transfer-config", self.refusal(text))


if __name__ == "__main__":
    unittest.main()
