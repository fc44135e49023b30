#!/usr/bin/env python3
"""What comes over a socket that no well-behaved client sends: halves, floods, hang-ups."""

import contextlib
import socket
import unittest

from harness import Background, ServerTest, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 3900, "temperature": 0, "ignore_eos": True}


def post(body, *headers):
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class HangUps(ServerTest):
    MODEL = {"context": 4096}

    def test_a_client_that_hangs_up_frees_its_blocks(self):
        for path, ask in ((COMPLETIONS, {}), ("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Hi"}]})):
            with self.subTest(path):
                stream = self.server.stream(path, {**LONG, **ask})
                stream.next_text()
                self.assertEqual(self.server.status()["requests_running"], 1)
                stream.close()
                self.server.idle(1.0)

    def test_a_client_that_hangs_up_without_a_stream_frees_its_blocks(self):
        body = b'{"prompt": "Once upon a time", "max_tokens": 3900, "ignore_eos": true}'
        with socket.create_connection(("127.0.0.1", self.server.port)) as peer:
            peer.sendall(post(body, f"Content-Length: {len(body)}"))
            wait_until(lambda: self.server.status()["requests_running"] == 1, what="a request that runs")
        self.server.idle(1.0)

    def test_a_client_that_hangs_up_while_it_waits_is_forgotten(self):
        self.ok(self.server.post("/pause"))
        body = b'{"prompt": "x"}'
        with socket.create_connection(("127.0.0.1", self.server.port)) as peer:
            peer.sendall(post(body, f"Content-Length: {len(body)}"))
            wait_until(lambda: self.server.status()["requests_waiting"] == 1, what="a request that waits")
        self.server.idle(1.0)
        self.ok(self.server.post("/resume"))

    def test_many_that_hang_up_leave_nothing(self):
        for _ in range(3):
            streams = [self.server.stream(COMPLETIONS, {**LONG, "n": 2}) for _ in range(8)]
            streams[0].next_text()
            for stream in streams:
                stream.close()
        self.server.idle(3.0)
        self.assertTrue(self.server.text())

    def test_a_reader_that_never_reads_disturbs_nobody(self):
        expected = self.server.text()
        with contextlib.ExitStack() as peers:
            for _ in range(4):
                body = (b'{"prompt": "x", "max_tokens": 3900, "ignore_eos": true, "stream": true, '
                        b'"logprobs": 5}')
                peer = peers.enter_context(socket.socket())
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                peer.connect(("127.0.0.1", self.server.port))
                peer.sendall(post(body, f"Content-Length: {len(body)}"))
            wait_until(lambda: self.server.status()["requests_running"] > 0, what="a request that runs")
            self.assertEqual(self.server.text(), expected)
        self.server.idle()


class Floods(ServerTest):
    def test_a_huge_body_is_refused_before_it_comes(self):
        for length in (1 << 30, 1 << 40, (1 << 63) - 1):
            reply = self.server.raw(post(b"", f"Content-Length: {length}"))
            self.assertIn(b" 413 ", reply[:20], reply[:200])

    def test_a_huge_chunked_body_is_refused_and_not_kept(self):
        chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as peer:
            peer.sendall(post(b"", "Transfer-Encoding: chunked"))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(200):
                    peer.sendall(chunk)
            self.assertIn(b" 413 ", peer.recv(4096)[:20])
        self.assertLess(self.server.resident_bytes(), 128 << 20)

    def test_many_headers_or_long_ones_are_refused(self):
        for headers in ([f"X-{i}: y" for i in range(10_000)], ["X: " + "y" * 1_000_000]):
            reply = self.server.raw(post(b"{}", "Content-Length: 2", *headers))
            self.assertRegex(reply[:20], rb"^(HTTP/1.1 431 |$)", reply[:200])
        reply = self.server.raw(b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertRegex(reply[:20], rb"^(HTTP/1.1 4(14|31|00) |$)", reply[:200])

    def test_a_body_in_tiny_chunks_is_read(self):
        body = b'{"prompt": "' + b"x" * 1000 + b'", "max_tokens": 1}'
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        reply = self.server.raw(post(chunks, "Transfer-Encoding: chunked", "Connection: close"))
        self.assertIn(b" 200 ", reply[:20], reply[:200])

    def test_what_is_not_http_is_refused(self):
        for data in (b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"GET  /  HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
                     post(b"zz\r\n", "Transfer-Encoding: chunked"), post(b"x", "Content-Length: -1"),
                     post(b"x", "Content-Length: 1e3"), post(b"x", "Content-Length: 1", "Content-Length: 5"),
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with self.subTest(data[:40]):
                self.assertRegex(self.server.raw(data)[:13], rb"^(HTTP/1.1 [45]|$)")

    def test_two_lengths_are_refused(self):
        reply = self.server.raw(post(b"2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 2"))
        self.assertIn(b" 400 ", reply[:20], reply[:200])

    def test_half_requests_hold_nobody_up(self):
        with contextlib.ExitStack() as peers:
            for i in range(150):
                peer = peers.enter_context(socket.create_connection(("127.0.0.1", self.server.port)))
                peer.sendall((b"POST /v1/comp", b"", post(b'{"pro', "Content-Length: 500"))[i % 3])
            self.assertTrue(self.server.text())
            self.assertEqual(self.server.get("/health", timeout=5).status, 200)

    def test_requests_may_come_one_behind_the_other(self):
        body = b'{"prompt": "x", "max_tokens": 2}'
        one = post(body, f"Content-Length: {len(body)}")
        reply = self.server.raw(one + one + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertEqual(reply.count(b"HTTP/1.1 200 OK"), 3, reply[:500])

    def test_a_connection_is_used_again(self):
        with contextlib.closing(self.server.connect()) as connection:
            for _ in range(3):
                connection.request("GET", "/health")
                response = connection.getresponse()
                response.read()
                self.assertEqual(response.status, 200)

    def test_a_client_that_expects_continue_gets_it(self):
        body = b'{"prompt": "x", "max_tokens": 2}'
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as peer:
            peer.sendall(post(b"", f"Content-Length: {len(body)}", "Expect: 100-continue"))
            self.assertTrue(peer.recv(100).startswith(b"HTTP/1.1 100"))
            peer.sendall(body)
            self.assertTrue(peer.recv(4096).startswith(b"HTTP/1.1 200"))

    def test_two_requests_of_one_id_are_two_requests(self):
        expected = [self.server.text("x", max_tokens=50), self.server.text("Zebra", max_tokens=50)]
        def ask(prompt):
            return self.server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 50, "temperature": 0},
                                    headers={"X-Request-Id": "the-same"}).json()["choices"][0]["text"]
        self.assertEqual(Background(lambda: ask("x"), lambda: ask("Zebra")).join(), expected)


class FewDescriptors(ServerTest):
    """Started with 64 file descriptors at most."""

    @classmethod
    def setUpClass(cls):
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard[1]))
        try:
            super().setUpClass()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, hard)

    def cpu_seconds(self):
        with open(f"/proc/{self.server.pid}/stat", encoding="ascii") as stat:
            return sum(map(int, stat.read().rpartition(")")[2].split()[11:13])) / 100

    def test_too_many_connections_end_no_stream_and_spin_no_thread(self):
        body = {**LONG, "max_tokens": 1500}
        expected = self.server.text(body["prompt"], max_tokens=1500, ignore_eos=True)
        stream = self.server.stream(COMPLETIONS, body)
        stream.next_text()
        with contextlib.ExitStack() as peers:
            for _ in range(100):
                peers.enter_context(socket.create_connection(("127.0.0.1", self.server.port)))
            self.assertEqual(stream.rest().text(), expected)
            before = self.cpu_seconds()
            with contextlib.suppress(OSError, AssertionError):
                self.server.get("/health", timeout=1)
            self.assertLess(self.cpu_seconds() - before, 0.5)
        wait_until(self.answers, 10, "an answer after the flood")
        self.assertEqual(self.server.text(body["prompt"], max_tokens=1500, ignore_eos=True), expected)

    def answers(self):
        with contextlib.suppress(OSError):
            return self.server.get("/health", timeout=2).status == 200


if __name__ == "__main__":
    unittest.main()
