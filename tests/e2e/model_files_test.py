#!/usr/bin/env python3
"""Model files that are cut off, hostile or not models at all: a word on stderr, an exit code, no crash."""

import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

from harness import COMMAND, SCRATCH, Server, make_model


class ModelFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="e2e.", dir=SCRATCH)
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)
        cls.model = make_model(cls.path / "good.gguf").read_bytes()

    def write(self, data, name="bad.gguf"):
        path = self.path / name
        path.write_bytes(data)
        return path

    def start(self, path, timeout=30):
        return subprocess.Popen([COMMAND, "serve", str(path), "--port", "0"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def end(self, process, timeout=30):
        try:
            _, error = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.fail("it is being served")
        self.assertNotIn("terminate called", error)
        self.assertGreater(process.returncode, 0, f"killed by a signal, or content: {error[-500:]}")
        self.assertTrue(error.strip(), "no word on stderr")
        return error

    def refused(self, path):
        return self.end(self.start(path))

    def test_a_path_that_is_no_model_is_refused(self):
        for name, word in (("nowhere.gguf", "nowhere.gguf"), (".", ""), ("/dev/null", ""), ("/dev/zero", "")):
            with self.subTest(name):
                self.assertIn(word, self.refused(self.path / name))

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_a_file_that_may_not_be_read_is_refused(self):
        path = self.write(self.model)
        path.chmod(0)
        self.assertIn("bad.gguf", self.refused(path))

    def test_what_is_no_gguf_is_refused(self):
        for data in (b"", b"G", b"GGUF", b"not a model at all, but some text", b"\x00" * 4096,
                     b"ggml" + self.model[4:], self.model[4:], b"\x7fELF" + b"\x00" * 1000):
            with self.subTest(data[:10]):
                self.refused(self.write(data))

    def test_another_version_is_named(self):
        for version in (0, 1, 4, 0x03000000, 0xFFFFFFFF):
            with self.subTest(version):
                error = self.refused(self.write(self.model[:4] + struct.pack("<I", version) + self.model[8:]))
                self.assertIn("version", error.lower())

    def test_huge_counts_are_refused(self):
        for place in (8, 16):
            for count in (2**32, 2**62, 2**64 - 1):
                with self.subTest(place=place, count=count):
                    data = self.model[:place] + struct.pack("<Q", count) + self.model[place + 8:]
                    self.refused(self.write(data))

    def test_a_truncated_file_is_refused_wherever_it_ends(self):
        size = len(self.model)
        cuts = [*range(0, 64, 9), *(size * i // 24 for i in range(1, 24)), size - 4096, size - 32, size - 1]
        started = []
        for i, cut in enumerate(cuts):
            started.append((cut, self.start(self.write(self.model[:cut], f"cut{i}.gguf"))))
            if len(started) == 4:
                for where, process in started:
                    with self.subTest(cut=where):
                        self.end(process)
                started = []
        for where, process in started:
            with self.subTest(cut=where):
                self.end(process)

    def test_flipped_bytes_never_crash_it(self):
        """Not every flipped byte can be seen; but none may end the process by a signal."""
        chance = random.Random(5)
        header = self.model.find(b"blk.0") + 2000
        for i in range(24):
            data = bytearray(self.model)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(8, header)] = chance.randrange(256)
            path = self.write(bytes(data), f"flip{i}.gguf")
            with self.subTest(i):
                process = self.start(path)
                try:
                    process.communicate(timeout=0.4)
                except subprocess.TimeoutExpired:
                    process.terminate()
                    process.communicate(timeout=30)
                    self.assertEqual(process.returncode, 0)
                else:
                    self.assertGreater(process.returncode, 0, "killed by a signal")

    def test_another_architecture_is_named(self):
        data = self.model.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00zebra", 1)
        self.assertNotEqual(data, self.model)
        self.assertIn("zebra", self.refused(self.write(data)))

    def test_the_good_one_is_served(self):
        server = Server(self.path / "good.gguf")
        self.addCleanup(server.kill)
        self.assertTrue(server.text())

    def test_a_model_that_becomes_bad_does_not_come_back_as_noise(self):
        path = self.write(self.model, "changing.gguf")
        server = Server(path)
        self.addCleanup(server.kill)
        text = server.text()
        self.assertEqual(server.post("/sleep?level=2").status, 200)
        replaced = self.path / "other.gguf"
        replaced.write_bytes(self.model[:len(self.model) // 2])
        replaced.rename(path)
        self.assertEqual(server.post("/wake_up").status, 200)
        answer = server.post("/reload_weights")
        self.assertGreaterEqual(answer.status, 400, answer)
        self.assertTrue(answer.json()["error"]["message"])
        self.assertEqual(server.post("/v1/completions", {"prompt": "x"}).status, 503)
        replaced.write_bytes(self.model)
        replaced.rename(path)
        self.assertEqual(server.post("/reload_weights").status, 200)
        self.assertEqual(server.text(), text)

    def test_a_model_cut_off_in_place_is_no_reason_to_crash(self):
        path = self.write(self.model, "cut_in_place.gguf")
        server = Server(path)
        self.addCleanup(server.kill)
        text = server.text()
        os.truncate(path, 1000)
        self.assertEqual(server.text(), text)
        self.assertEqual(server.post("/sleep?level=1").status, 200)
        self.assertEqual(server.post("/wake_up").status, 200)
        self.assertEqual(server.text(), text)
        self.assertGreaterEqual(server.post("/reload_weights").status, 400)
        self.assertTrue(server.alive())

    def test_a_wake_up_from_a_changed_file_is_refused(self):
        path = self.write(self.model, "backup.gguf")
        server = Server(path, "--weight-backup", "file")
        self.addCleanup(server.kill)
        text = server.text()
        self.assertEqual(server.post("/sleep?level=1").status, 200)
        self.assertEqual(server.status()["memory"]["weights"]["backed_up"], 0)
        changed = bytearray(self.model)
        changed[-100] ^= 1
        path.write_bytes(changed)
        answer = server.post("/wake_up")
        self.assertGreaterEqual(answer.status, 400, answer)
        self.assertEqual(server.post("/v1/completions", {"prompt": "x"}).status, 503)
        path.write_bytes(self.model)
        self.assertEqual(server.post("/wake_up").status, 200)
        self.assertEqual(server.text(), text)


if __name__ == "__main__":
    unittest.main()
