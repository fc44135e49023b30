#!/usr/bin/env python3
"""The bytes come back: what the kernel itself says of the server's process while the engine sleeps."""

import os
import pathlib
import time
import unittest

from harness import ServerTest

CACHE = 64 << 20


class Memory(ServerTest):
    MODEL = {"context": 2048, "layers": 4, "embd": 256, "ffn": 1024, "heads": 4}
    FLAGS = ("--kv-cache-memory-bytes", CACHE)

    def blocks(self):
        """How many of the process's mappings and descriptors are blocks of the device."""
        maps = pathlib.Path(f"/proc/{self.server.pid}/maps").read_text()
        folder = pathlib.Path(f"/proc/{self.server.pid}/fd")
        targets = []
        for entry in folder.iterdir():
            try:
                targets.append(os.readlink(entry))
            except FileNotFoundError:
                continue
        return (sum("dormouse-block" in line for line in maps.splitlines()),
                sum("dormouse-block" in target for target in targets))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.server.pid}/task"))

    def sleep(self, level=1):
        return self.ok(self.server.post(f"/sleep?level={level}"))

    def wake(self, level=1):
        self.ok(self.server.post("/wake_up"))
        if level == 2:
            self.ok(self.server.post("/reload_weights"))

    def use_the_cache(self):
        for i in range(3):
            self.server.text(f"{i} fills a part of the cache. " * 60, max_tokens=8)

    def test_nothing_of_the_device_is_mapped_or_open_while_asleep(self):
        self.use_the_cache()
        mapped, _ = self.blocks()
        self.assertGreater(mapped, 0)
        for level in (1, 2):
            with self.subTest(level=level):
                self.sleep(level)
                self.assertEqual(self.blocks(), (0, 0))
                self.wake(level)
                self.assertEqual(self.blocks()[0], mapped)

    def test_shared_memory_falls_by_what_was_mapped(self):
        self.use_the_cache()
        awake = self.server.resident_bytes("RssShmem")
        self.assertGreater(awake, 2 << 20)
        reply = self.sleep(1)
        self.assertLess(self.server.resident_bytes("RssShmem"), 1 << 20)
        self.assertGreater(reply["freed_bytes"], 0)

    def test_the_whole_process_shrinks_at_level_2(self):
        self.use_the_cache()
        awake = self.server.resident_bytes()
        self.sleep(2)
        asleep = self.server.resident_bytes()
        status = self.server.status()["memory"]
        weights = status["weights"]["asleep"]
        self.assertLess(asleep, awake - weights // 2)
        self.assertEqual(status["weights"]["backed_up"], 0)

    def test_half_a_wake_up_maps_half(self):
        self.sleep(1)
        self.ok(self.server.post("/wake_up?tags=weights"))
        memory = self.server.status()["memory"]
        self.assertGreater(memory["weights"]["mapped"], 0)
        self.assertEqual(memory["kv_cache"]["mapped"], 0)
        self.assertLess(self.server.resident_bytes("RssShmem"), CACHE)

    def test_the_cache_given_back_alone_is_unmapped_alone(self):
        self.use_the_cache()
        before = self.server.resident_bytes("RssShmem")
        self.ok(self.server.post("/pause"))
        self.ok(self.server.post("/release_kv_cache_memory"))
        self.assertLess(self.server.resident_bytes("RssShmem"), before)
        memory = self.server.status()["memory"]
        self.assertEqual((memory["kv_cache"]["mapped"], memory["kv_cache"]["backed_up"]), (0, 0))

    def held(self):
        mapped = self.server.status()["memory"]["weights"]["mapped"]
        # The server may not have noticed yet that the last client has gone.
        counts = []
        for _ in range(20):
            time.sleep(0.02)
            counts.append(self.descriptors())
        return min(counts), self.threads(), mapped

    def test_forty_cycles_leave_nothing_behind(self):
        expected = self.server.text(max_tokens=40)
        self.sleep(1)
        self.wake()
        self.server.text()
        before = self.held()
        resident = self.server.resident_bytes()
        for i in range(40):
            level = 2 if i % 5 == 4 else 1
            self.sleep(level)
            self.wake(level)
            if i % 10 == 0:
                self.assertEqual(self.server.text(max_tokens=40), expected)
        self.assertEqual(self.server.text(max_tokens=40), expected)
        status = self.server.status()
        self.assertEqual(self.held(), before)
        self.assertLess(self.server.resident_bytes(), resident + (8 << 20))
        for tag, usage in status["memory"].items():
            self.assertEqual(usage["leaked"], 0, tag)


if __name__ == "__main__":
    unittest.main()
