"""Starts the command on a small model and talks to it. Python's standard library alone."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

COMMAND = os.environ["DORMOUSE_COMMAND"]
SCRATCH = pathlib.Path(os.environ.get("DORMOUSE_SCRATCH", tempfile.gettempdir()))
START_TIMEOUT = 60.0
URL = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0):(\d+)")
# What must never stand in an answer to a user: addresses, source files, names of shared memory.
LEAKS = re.compile(r"0x[0-9a-f]{6,}|\.(?:cc|h):\d|/proc/|/dev/shm|memfd")


def make_model(path, **options):
    """A random model; the same options give the same bytes."""
    subprocess.run([os.environ["DORMOUSE_MAKE_TINY_MODEL"], path,
                    *(f"{name}={value}" for name, value in options.items())], check=True)
    return pathlib.Path(path)


def wait_until(condition, timeout=10.0, what="condition"):
    """The first true value of `condition()`; asked often, since nothing here announces itself."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.005)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode("utf-8")

    def json(self):
        return json.loads(self.body, parse_constant=lambda word: self._not_json(word))

    def _not_json(self, word):
        raise AssertionError(f"{word} is not JSON: {self.body[:300]}")

    def __repr__(self):
        return f"{self.status} {self.body[:400]!r}"


class Stream:
    """Server-sent events of one answer, read as they come."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.status, self.headers = response.status, response.headers
        self.done = False
        self.events = []

    def __iter__(self):
        while line := self.response.readline():
            line = line.rstrip(b"\r\n")
            if not line or line.startswith(b":"):
                continue
            assert line.startswith(b"data: "), f"not an event: {line!r}"
            assert not self.done, f"an event after [DONE]: {line!r}"
            if line == b"data: [DONE]":
                self.done = True
                continue
            event = json.loads(line[6:])
            self.events.append(event)
            yield event

    def next_text(self):
        """Reads until a chunk with text in it."""
        for event in self:
            if event["choices"] and piece(event["choices"][0]):
                return piece(event["choices"][0])
        raise AssertionError(f"the stream ended without text: {self.events}")

    def rest(self):
        for _ in self:
            pass
        self.close()
        return self

    def text(self, index=0):
        return "".join(piece(choice) for event in self.events for choice in event["choices"]
                       if choice["index"] == index)

    def finish_reasons(self, index=0):
        return [choice["finish_reason"] for event in self.events for choice in event["choices"]
                if choice["index"] == index and choice.get("finish_reason")]

    def close(self):
        """Hangs up, also in the middle."""
        with contextlib.suppress(OSError):
            self.connection.sock and self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.response.close()
        self.connection.close()


def piece(choice):
    return (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""


class Server:
    URL = URL

    def __init__(self, model, *flags, port=0, ready=True, prefix=(), api_key=None, environment=None):
        self.api_key = api_key
        self.log_file = tempfile.NamedTemporaryFile("w+", prefix="serve.", suffix=".log", dir=SCRATCH)
        self.process = subprocess.Popen(
            [*prefix, *self.command(model, port), *map(str, flags)],
            stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, **(environment or {})})
        self.pid = self.process.pid
        try:
            self.port = int(wait_until(self._announced, START_TIMEOUT, "the URL in the log").group(1))
            if ready:
                wait_until(lambda: self.alive() and self.get("/health/ready").status == 200,
                           START_TIMEOUT, "ready")
        except BaseException:
            print(self.log(), file=sys.stderr)
            self.kill()
            raise

    def command(self, model, port):
        return [COMMAND, "serve", str(model), "--port", str(port)]

    def _announced(self):
        found = self.URL.search(self.log())
        if not found and self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode}: {self.log()}")
        return found

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(errors="replace")

    def alive(self):
        code = self.process.poll()
        assert code is None, f"the server ended with {code}: {self.log()[-2000:]}"
        return True

    # --- requests
    def connect(self, timeout=60.0):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def _headers(self, body, headers):
        made = {"Content-Type": "application/json"} if body is not None else {}
        if self.api_key:
            made["Authorization"] = f"Bearer {self.api_key}"
        made.update(headers or {})
        return made

    def request(self, method, path, body=None, headers=None, timeout=60.0):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode("utf-8", "surrogatepass")
        with contextlib.closing(self.connect(timeout)) as connection:
            connection.request(method, path, body, self._headers(body, headers))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body=None, **options):
        return self.request("POST", path, body, **options)

    def stream(self, path, body, timeout=60.0):
        connection = self.connect(timeout)
        body = json.dumps({**body, "stream": True}).encode()
        connection.request("POST", path, body, self._headers(body, None))
        return Stream(connection, connection.getresponse())

    def raw(self, data, timeout=10.0):
        """Sends bytes as they are and reads until the server hangs up or says nothing for a second."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as peer:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sendall(data)
            received = b""
            peer.settimeout(1.0)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while more := peer.recv(65536):
                    received += more
            return received

    # --- what tests ask most
    def complete(self, prompt="Once upon a time", **options):
        answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0,
                                               **options})
        assert answer.status == 200, answer
        return answer.json()

    def text(self, prompt="Once upon a time", **options):
        return self.complete(prompt, **options)["choices"][0]["text"]

    def chat(self, content="Hello", **options):
        answer = self.post("/v1/chat/completions",
                           {"messages": [{"role": "user", "content": content}], "max_tokens": 24,
                            "temperature": 0, **options})
        assert answer.status == 200, answer
        return answer.json()

    def status(self):
        answer = self.get("/status")
        assert answer.status == 200, answer
        return answer.json()

    def idle(self, timeout=5.0):
        """Waits until no request holds anything."""
        return wait_until(lambda: (lambda s: s if s["requests_running"] == s["requests_waiting"]
                                   == s["blocks_used"] == 0 else None)(self.status()),
                          timeout, "no requests and no blocks in use")

    def metrics(self):
        """name -> {labels as written: value}"""
        found = {}
        for line in self.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, labels, value = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line).groups()
                found.setdefault(name, {})[labels or ""] = float(value)
        return found

    # --- the process
    def resident_bytes(self, kind="VmRSS"):
        """VmRSS, RssAnon, RssShmem: what the kernel counts for the process."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{kind}:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=15.0):
        return self.process.wait(timeout)

    def orphans(self):
        """Whether anything of the server's process group is left."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def stop(self):
        """Asks it to end; the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        finally:
            self.kill()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self.log_file.close()


class Background:
    """Runs calls in threads and hands their results out, exceptions included."""

    def __init__(self, *calls):
        self.results = [None] * len(calls)
        self.errors = []
        self.threads = [threading.Thread(target=self._run, args=(i, call), daemon=True)
                        for i, call in enumerate(calls)]
        for thread in self.threads:
            thread.start()

    def _run(self, i, call):
        try:
            self.results[i] = call()
        except BaseException as error:  # handed to the test's thread
            self.errors.append(error)

    def join(self, timeout=60.0):
        end = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), "a call has not come back"
        if self.errors:
            raise self.errors[0]
        return self.results


class ServerTest(unittest.TestCase):
    """One server for a class of tests. Each test starts and ends with it awake and idle."""

    MODEL = {"context": 2048}
    FLAGS = ()
    API_KEY = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="e2e.", dir=SCRATCH)
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = make_model(pathlib.Path(cls.folder.name) / "tiny.gguf", **cls.MODEL)
        cls.server = Server(cls.model, *cls.FLAGS, api_key=cls.API_KEY)
        cls.addClassCleanup(cls.server.kill)

    def setUp(self):
        self.addCleanup(self._awake_and_idle)

    def _awake_and_idle(self):
        self.server.alive()
        if self.server.get("/is_sleeping").json()["is_sleeping"]:
            self.server.post("/wake_up")
            self.server.post("/reload_weights")
            self.server.post("/resume")
        self.server.idle(15.0)

    def refused(self, answer, status, param=None):
        """The answer is an error of this kind, in the shape that clients parse."""
        statuses = status if isinstance(status, tuple) else (status,)
        self.assertIn(answer.status, statuses, answer)
        error = answer.json()["error"]
        self.assertTrue(error["message"], answer)
        self.assertTrue({"type", "param", "code"} <= set(error), answer)
        self.assertNotRegex(answer.text, LEAKS)
        if param is not None:
            self.assertEqual(error["param"], param, answer)
        return error

    def ok(self, answer):
        self.assertEqual(answer.status, 200, answer)
        return answer.json()
