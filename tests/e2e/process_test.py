#!/usr/bin/env python3
"""The command as a process: its flags, its signals, its end, and `dormouse ctl`."""

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from harness import COMMAND, SCRATCH, Background, Server, make_model, wait_until

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "temperature": 0, "ignore_eos": True}


def run(*arguments, timeout=30, **options):
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, **options)


class ProcessTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="e2e.", dir=SCRATCH)
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = make_model(pathlib.Path(cls.folder.name) / "tiny.gguf", context=2048)

    def serve(self, *flags, model=None, **options):
        server = Server(model or self.model, *flags, **options)
        self.addCleanup(server.kill)
        return server

    def fails(self, *arguments, words=()):
        """Ends soon, by itself, with an error that says what is wrong."""
        done = run(*arguments)
        self.assertGreater(done.returncode, 0, (done.returncode, done.stderr))
        self.assertTrue(done.stderr.strip(), "no word on stderr")
        for word in words:
            self.assertIn(word, done.stderr)
        return done


class CommandLine(ProcessTest):
    def test_help_and_version_say_what_there_is(self):
        for arguments in (["--help"], ["serve", "--help"], ["ctl", "--help"]):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        for flag in ("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size",
                     "--kv-cache-memory-bytes", "--host-memory-limit", "--served-model-name", "--host",
                     "--port", "--api-key", "--shutdown-timeout", "--enable-sleep-mode"):
            self.assertIn(flag, run("serve", "--help").stdout)
        self.assertRegex(run("--version").stdout, r"\d+\.\d+\.\d+")

    def test_a_wrong_command_line_is_refused(self):
        self.fails("nothing")
        self.fails("serve")
        for flags in (["--max-num-sequences", "5"], ["--port", "70000"], ["--port", "-1"], ["--port", "x"],
                      ["--block-size", "0"], ["--block-size", "-1"], ["--max-num-seqs", "0"],
                      ["--max-num-seqs", "9007199254740993"], ["--max-model-len", "-5"],
                      ["--kv-cache-memory-bytes", "x"], ["--kv-cache-memory-bytes", "-1"],
                      ["--kv-cache-memory-bytes", "99999999999999999999"], ["--max-num-batched-tokens", "0"],
                      ["--host-memory-limit", "1e308"], ["--shutdown-timeout", "nan"]):
            with self.subTest(flags=flags):
                self.fails("serve", self.model, "--port", "0", *flags, words=[flags[0]])

    def test_a_context_beyond_the_models_is_refused(self):
        self.fails("serve", self.model, "--port", "0", "--max-model-len", "4096", words=["2048"])

    def test_a_cache_too_small_for_one_block_is_refused(self):
        self.fails("serve", self.model, "--port", "0", "--kv-cache-memory-bytes", "100",
                   words=["--kv-cache-memory-bytes"])

    def test_what_never_fits_the_cache_is_refused_at_once(self):
        server = self.serve("--kv-cache-memory-bytes", "4096")
        answer = server.post("/v1/completions", {"prompt": "word " * 40, "max_tokens": 100}, timeout=10)
        self.assertIn(answer.status, (400, 507), answer)
        self.assertTrue(server.text("x", max_tokens=3))

    def test_another_host_needs_a_key(self):
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            with self.subTest(host):
                done = self.fails("serve", self.model, "--port", "0", "--host", host, words=["--api-key"])
                self.assertTrue(done.stderr.splitlines()[-1].startswith("dormouse: "), done.stderr)

    def test_with_a_key_another_host_is_served(self):
        server = self.serve("--host", "0.0.0.0", "--api-key", "a-secret", api_key="a-secret")
        self.assertTrue(server.text())

    def test_an_empty_key_is_none(self):
        self.fails("serve", self.model, "--port", "0", "--host", "0.0.0.0", "--api-key", "")

    def test_loopback_is_the_default(self):
        server = self.serve()
        listening = pathlib.Path(f"/proc/{server.pid}/net/tcp").read_text()
        hosts = {line.split()[1].split(":")[0] for line in listening.splitlines()[1:]
                 if line.split()[1].endswith(f":{server.port:04X}") and line.split()[3] == "0A"}
        self.assertEqual(hosts, {"0100007F"})

    def test_a_port_in_use_is_refused(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.fails("serve", self.model, "--port", port, words=[str(port)])
            self.assertTrue(done.stderr.splitlines()[-1].startswith("dormouse: "), done.stderr)

    def test_sizes_and_names_are_taken(self):
        server = self.serve("--max-model-len", 300, "--block-size", 8, "--served-model-name", "sleepy",
                            "--kv-cache-memory-bytes", "4M", "--max-num-seqs", 3,
                            "--max-num-batched-tokens", 32)
        (model,) = server.get("/v1/models").json()["data"]
        self.assertEqual((model["id"], model["max_model_len"]), ("sleepy", 300))
        status = server.status()
        self.assertEqual((status["max_model_len"], status["block_size"]), (300, 8))
        mapped = status["memory"]["kv_cache"]["mapped"]
        self.assertTrue(3 << 20 <= mapped <= 5 << 20, mapped)
        self.assertTrue(server.text("A prompt of more than thirty-two tokens. " * 4))

    def test_answers_do_not_depend_on_the_sizes(self):
        asks = [("Once upon a time", 60), ("The quick brown fox. " * 8, 40)]
        expected = None
        for flags in ((), ("--block-size", 4, "--max-num-batched-tokens", 7, "--max-num-seqs", 5),
                      ("--no-enable-prefix-caching", "--threads", 1)):
            server = self.serve(*flags)
            texts = [server.text(prompt, max_tokens=length) for prompt, length in asks * 2]
            self.assertEqual(texts[:2], texts[2:])
            expected = expected or texts
            self.assertEqual(texts, expected, flags)
            server.stop()

    def test_the_key_stands_in_no_log(self):
        server = self.serve("--api-key", "very-secret-key", "--log-level", "debug", api_key="very-secret-key")
        server.text("a confidential prompt")
        self.assertNotIn("very-secret-key", server.log())


class Signals(ProcessTest):
    def ends(self, server, code=0, within=10.0):
        started = time.monotonic()
        self.assertEqual(server.wait(within), code, server.log()[-1000:])
        self.assertLess(time.monotonic() - started, within)
        self.assertFalse(server.orphans())

    def test_term_and_int_end_it(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                server = self.serve()
                server.signal(number)
                self.ends(server)

    def test_term_lets_requests_finish(self):
        server = self.serve()
        expected = server.text(LONG["prompt"], max_tokens=1900, ignore_eos=True)
        stream = server.stream("/v1/completions", LONG)
        stream.next_text()
        server.signal(signal.SIGTERM)
        refused = wait_until(lambda: self.refusal(server), 5, "a closed door")
        self.assertIn(refused, ("closed", 503))
        stream.rest()
        self.assertEqual((stream.text(), stream.finish_reasons()), (expected, ["length"]))
        self.ends(server)

    def refusal(self, server):
        try:
            answer = server.get("/health", timeout=5)
        except OSError:
            return "closed"
        return answer.status if answer.status != 200 else None

    def test_term_waits_no_longer_than_told(self):
        server = self.serve("--shutdown-timeout", "0.2")
        streams = [server.stream("/v1/completions", {**LONG, "n": 8}) for _ in range(4)]
        streams[0].next_text()
        server.signal(signal.SIGTERM)
        self.ends(server)
        reasons = set()
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.rest()
            reasons |= {reason for index in range(8) for reason in stream.finish_reasons(index)}
        self.assertIn("abort", reasons)

    def test_a_second_term_ends_it_at_once(self):
        server = self.serve("--shutdown-timeout", "60")
        streams = [server.stream("/v1/completions", {**LONG, "n": 8}) for _ in range(4)]
        streams[0].next_text()
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.process.poll() is not None or self.refusal(server), 5, "a closed door")
        started = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            server.signal(signal.SIGTERM)
        self.assertIsNotNone(server.wait(5))
        self.assertLess(time.monotonic() - started, 2.0)
        self.assertFalse(server.orphans())
        for stream in streams:
            stream.close()

    def test_term_ends_it_while_it_is_asleep_or_paused(self):
        for path in ("/sleep?level=1", "/sleep?level=2", "/pause"):
            with self.subTest(path):
                server = self.serve()
                self.assertEqual(server.post(path).status, 200)
                server.signal(signal.SIGTERM)
                self.ends(server)

    def test_term_ends_it_with_kept_requests(self):
        server = self.serve("--shutdown-timeout", "1")
        stream = server.stream("/v1/completions", LONG)
        stream.next_text()
        self.assertEqual(server.post("/sleep?mode=keep").status, 200)
        server.signal(signal.SIGTERM)
        self.ends(server)
        with contextlib.suppress(OSError):
            stream.rest()
            self.assertNotIn("length", stream.finish_reasons())

    def test_term_ends_it_in_the_middle_of_a_sleep(self):
        big = make_model(pathlib.Path(self.folder.name) / "big.gguf", layers=4, embd=512, ffn=1536, heads=8)
        for pause in (0.0, 0.002, 0.01, 0.03):
            with self.subTest(pause):
                server = self.serve("--kv-cache-memory-bytes", "256M", model=big)
                call = Background(lambda: server.post("/sleep?level=1"))
                time.sleep(pause)
                server.signal(signal.SIGTERM)
                self.ends(server)
                with contextlib.suppress(OSError):
                    answer, = call.join()
                    self.assertIn(answer.status, (200, 409, 503), answer)

    def test_term_cuts_a_waiting_sleep_short(self):
        server = self.serve("--shutdown-timeout", "0.5")
        stream = server.stream("/v1/completions", {**LONG, "n": 8})
        stream.next_text()
        call = Background(lambda: server.post("/sleep?mode=wait"))
        wait_until(lambda: server.status()["state"] == "pausing", what="a sleep that waits")
        server.signal(signal.SIGTERM)
        self.ends(server)
        with contextlib.suppress(OSError):
            answer, = call.join()
            self.assertIn(answer.status, (409, 503), answer)
        stream.close()

    def test_other_signals_leave_it_alone(self):
        for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH):
            with self.subTest(number):
                server = self.serve()
                server.signal(number)
                for _ in range(3):
                    self.assertTrue(server.alive() and server.text())
                server.stop()

    def test_usr1_writes_its_status_to_the_log(self):
        server = self.serve()
        server.signal(signal.SIGUSR1)
        line = wait_until(lambda: next((line for line in server.log().splitlines()
                                        if "status state=running" in line), None), what="a line of status")
        for word in ("requests_running=0", "weights_mapped=", "kv_cache_mapped="):
            self.assertIn(word, line)

    def test_a_stopped_server_goes_on_where_it_was(self):
        server = self.serve()
        expected = server.text(LONG["prompt"], max_tokens=1900, ignore_eos=True)
        stream = server.stream("/v1/completions", LONG)
        stream.next_text()
        server.signal(signal.SIGSTOP)
        server.signal(signal.SIGCONT)
        self.assertEqual(stream.rest().text(), expected)


class WhileLoading(ProcessTest):
    def test_it_says_so_and_refuses(self):
        big = make_model(pathlib.Path(self.folder.name) / "big.gguf", layers=8, embd=768, ffn=2048, heads=12)
        seen = set()
        for _ in range(5):
            server = self.serve(model=big, ready=False)
            seen |= self.watch(server)
            server.stop()
            if seen >= {"health", "sleep", "inference"}:
                break
        self.assertEqual(seen, {"health", "sleep", "inference"})

    def watch(self, server):
        seen = set()
        while server.get("/health/ready").status == 503:
            health, status = server.get("/health"), server.get("/status")
            sleep, inference = server.post("/sleep"), server.post("/v1/completions", {"prompt": "x"})
            self.assertEqual(status.status, 200)
            if health.status != 200:
                self.assertEqual(health.status, 503)
                seen.add("health")
            if sleep.status != 200:
                self.assertEqual(sleep.status, 409, sleep)
                self.assertIn("load", sleep.json()["error"]["message"])
                seen.add("sleep")
            elif sleep.status == 200:
                server.post("/wake_up")
            if inference.status != 200:
                self.assertEqual(inference.status, 503, inference)
                self.assertTrue(inference.headers["Retry-After"])
                seen.add("inference")
        self.assertTrue(server.text())
        return seen


class Ctl(ProcessTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server(cls.model)
        cls.addClassCleanup(cls.server.kill)
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    def ctl(self, *arguments, url=None):
        return run("ctl", *arguments, "--url", url or self.url)

    def test_status_tells_the_state(self):
        done = self.ctl("status")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("running", done.stdout)
        self.assertIn("weights", done.stdout)
        self.assertIn("kv_cache", done.stdout)

    def test_sleep_and_wake_do_it(self):
        text = self.server.text()
        done = self.ctl("sleep")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.server.status()["state"], "asleep")
        self.assertIn("asleep", self.ctl("status").stdout)
        done = self.ctl("wake")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.server.text(), text)

    def test_a_refusal_is_a_failure(self):
        done = self.ctl("sleep", "--level", "7")
        self.assertNotEqual(done.returncode, 0)
        self.assertTrue(done.stderr.strip())
        self.assertFalse(self.server.get("/is_sleeping").json()["is_sleeping"])

    def test_nobody_there_is_a_failure(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        done = self.ctl("status", url=f"http://127.0.0.1:{port}")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(port), done.stderr)

    def test_a_bad_url_is_a_failure(self):
        for url in ("nonsense", "ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "https://127.0.0.1:1"):
            with self.subTest(url):
                done = self.ctl("status", url=url)
                self.assertGreater(done.returncode, 0)
                self.assertTrue(done.stderr.strip())

    def test_status_as_json_is_json(self):
        done = self.ctl("status", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["state"], "running")


if __name__ == "__main__":
    unittest.main()
