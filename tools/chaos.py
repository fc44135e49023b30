#!/usr/bin/env python3
"""Prefill and decode instances under a router, while chance puts them to sleep, kills and stops them.

Every second something happens to one of them: sleep, wake-up, SIGKILL and restart, SIGSTOP for a while.
Clients compare every answer with a single instance's. At the end all are awake, and nothing is left of
what happened: no block in use, no old block mapped or open anywhere, no descriptor more than at the start.
Ends with one line of JSON; exit code 1 if anything was wrong.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENDS_WITHIN = 60.0  # seconds; a request that takes longer hangs
SLEEP_TIMEOUT_MS = 5000
COMPLETED = "dormouse:kv_completed_pulls_total"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="a .gguf file [a small random one]")
    parser.add_argument("--build", type=lambda text: pathlib.Path(text).resolve(), default=ROOT / "build/release", help="build tree")
    parser.add_argument("--transfers", type=int, default=1000, help="pulls to complete before the end")
    parser.add_argument("--least-seconds", type=float, default=90, help="least seconds of chaos")
    parser.add_argument("--seconds", type=float, default=1800, help="most seconds of chaos")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--prefill", type=int, default=2, help="instances")
    parser.add_argument("--decode", type=int, default=2, help="instances")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between events")
    parser.add_argument("--connector", choices=("IpcConnector", "MultiConnector"), default="IpcConnector",
                        help="MultiConnector: each instance has a tier of its own, on disk too")
    parser.add_argument("--policy", choices=("recompute", "fail"), default="recompute")
    parser.add_argument("--verify-kv", action="store_true", help="a checksum of every block")
    parser.add_argument("--seed", type=int, default=1, help="of events and requests")
    return parser.parse_args()


ARGS = arguments() if __name__ == "__main__" else None
if ARGS:
    os.environ.setdefault("DORMOUSE_COMMAND", str(ARGS.build / "bin/dormouse"))
    os.environ.setdefault("DORMOUSE_MAKE_TINY_MODEL", str(ARGS.build / "bin/make_tiny_model"))
sys.path.insert(0, str(ROOT / "tests/e2e"))

from harness import Server, make_model  # noqa: E402
from pd import (COMPLETIONS, Instance, Router, completion, essence, single_answer,  # noqa: E402
                transfer_config)


class Requests:
    """Bodies and the answers that a single instance gives to them; long shared beginnings among them."""

    def __init__(self, model, seed, count=200):
        numbers = random.Random(seed)
        shared = [[numbers.randrange(20, 250) for _ in range(96)] for _ in range(4)]
        self.all = []
        server = Server(model)
        try:
            for _ in range(count):
                tail = [numbers.randrange(20, 250) for _ in range(numbers.choice((1, 15, 16, 17, 60, 200)))]
                head = numbers.choice(shared) if numbers.random() < 0.3 else []
                body = completion(head + tail, max_tokens=numbers.choice((4, 16, 40)))
                self.all.append((body, single_answer(server, body)))
        finally:
            server.kill()


class Party:
    """One instance or the router: its process, restarted on the same port, and what its lives counted."""

    def __init__(self, name, make):
        self.name, self.make = name, make
        self.server = make(0)
        self.port = self.server.port
        self.busy = threading.Lock()
        self.deaths = 0
        self.past = collections.Counter()  # of incarnations that ended
        self.last = collections.Counter()  # of this one, as last seen

    def look(self):
        """Remembers the counters, so that a SIGKILL loses the last moment only."""
        try:
            found = self.server.metrics()
        except (OSError, http.client.HTTPException, AssertionError, ValueError):
            return
        self.last = collections.Counter({name: sum(values.values()) for name, values in found.items()
                                         if name.endswith("_total")})

    def count(self, name):
        return self.past[name] + self.last[name]

    def restart(self):
        self.look()
        self.deaths += 1
        self.server.kill()
        self.past.update(self.last)
        self.last = collections.Counter()
        self.server = self.make(self.port)
        self.deaths += 1  # again, for whoever asked the old one in its last moment

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))


class Chaos:
    def __init__(self, args, model, folder):
        self.args = args
        self.requests = Requests(model, args.seed)
        self.numbers = random.Random(args.seed)
        self.parties, self.router = [], None
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.answers, self.errors, self.events = (collections.Counter() for _ in range(3))
        self.wrong, self.hung, self.failures = [], 0, []
        self.pending = {}
        self.start_parties(model, folder)

    def start_parties(self, model, folder):
        ipc_dir = str(folder / "ipc")
        ports = range(5600, 5600 + self.args.prefill)
        flags = ["--verify-kv"] if self.args.verify_kv else []

        def config(role, name, port=None, **ipc):
            whole = {"role": role, "engine_id": name, "policy": self.args.policy}
            if self.args.connector == "IpcConnector":
                return transfer_config(port=port, ipc_dir=ipc_dir, **whole, **ipc)
            tier = transfer_config("OffloadingConnector", cpu_bytes_to_use=1 << 20,
                                   disk_path=str(folder / name), disk_bytes=16 << 20)
            return transfer_config("MultiConnector", **whole, connectors=[
                transfer_config(role=role, port=port, ipc_dir=ipc_dir, **ipc), tier])

        def producer(i, port):
            return Instance(model, config("kv_producer", f"p{i}", ports[i], kv_lease_duration=5), *flags,
                            port=port)

        def consumer(i, port):
            return Instance(model, config("kv_consumer", f"d{i}", pull_timeout=5,
                                          peers=[f"127.0.0.1:{peer}" for peer in ports]), *flags, port=port)
        for i in range(self.args.prefill):
            self.parties.append(Party(f"p{i}", lambda port, i=i: producer(i, port)))
        for i in range(self.args.decode):
            self.parties.append(Party(f"d{i}", lambda port, i=i: consumer(i, port)))
        self.producers = self.parties[:self.args.prefill]
        self.consumers = self.parties[self.args.prefill:]
        prefill, decode = ([party.server for party in side] for side in (self.producers, self.consumers))
        timeouts = ("--prefill-timeout", 10, "--decode-timeout", 30)
        self.router = Party("router", lambda port: Router(prefill, decode, *timeouts, port=port))

    def everybody(self):
        return [*self.parties, *([self.router] if self.router else [])]

    def kill(self):
        for party in self.everybody():
            party.server.kill()

    # --- clients
    def client(self, number):
        numbers = random.Random(f"{self.args.seed} {number}")
        while not self.done.is_set():
            body, expected = numbers.choice(self.requests.all)
            with self.lock:
                self.pending[number] = time.monotonic()
            try:
                kind = self.ask(body, expected, numbers.random() < 0.3)
            except Exception as error:  # a client that dies must not look like one that is content
                kind = "broken"
                self.failures.append(f"{type(error).__name__} in a client: {error}"[:300])
            with self.lock:
                self.pending.pop(number)
                self.answers[kind] += 1
            if kind != "answer":
                time.sleep(0.05)

    def ask(self, body, expected, stream):
        """What became of one request."""
        deaths = self.router.deaths
        try:
            found = self.streamed(body) if stream else self.whole(body)
        except TimeoutError:
            with self.lock:
                self.hung += 1
            return "hung"
        except (OSError, http.client.HTTPException, AssertionError, json.JSONDecodeError) as error:
            if self.router.deaths == deaths and self.router.server.process.poll() is None:
                self.failures.append(f"{type(error).__name__} though the router lives: {error}"[:200])
                return self.error("reset by a living router")
            return self.error("reset")
        if isinstance(found, str):
            return self.error(found)
        if found != expected:
            with self.lock:
                self.wrong.append({"prompt": body["prompt"][:8], "length": len(body["prompt"]),
                                   "got": str(found)[:300], "expected": str(expected)[:300]})
            return "wrong"
        return "answer"

    def whole(self, body):
        answer = self.router.server.post(COMPLETIONS, body, timeout=ENDS_WITHIN)
        if answer.status != 200:
            return str(answer.status)
        choices = answer.json()["choices"]
        return "abort" if choices[0]["finish_reason"] in ("abort", "error") else essence({"choices": choices})

    def streamed(self, body):
        stream = self.router.server.stream(COMPLETIONS, body, timeout=ENDS_WITHIN)
        if stream.status != 200:
            stream.close()
            return f"{stream.status}"
        choices = []
        for event in stream:
            if "error" in event:
                stream.rest()
                return "error in the stream"
            choices += event["choices"]
        stream.close()
        if not stream.done:
            raise http.client.IncompleteRead(b"")
        reason = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        if reason in (["abort"], ["error"]):
            return "abort"
        tokens = tuple(token for choice in choices for token in choice.get("token_ids") or ())
        values = tuple(value for choice in choices if choice.get("logprobs")
                       for value in choice["logprobs"]["token_logprobs"])
        return [(0, tokens, "".join(choice["text"] for choice in choices), values, reason[0])]

    def error(self, kind):
        with self.lock:
            self.errors[kind] += 1
        return "error"

    # --- events
    def event(self):
        """One thing happens to one party that nothing else is happening to."""
        if self.numbers.random() < 0.03:
            party, what = self.router, "kill"
        else:
            party = self.numbers.choice(self.parties)
            what = self.numbers.choices(("turn", "sleep", "wake", "kill", "stop"), (10, 1, 1, 2, 3))[0]
        details = self.numbers.choice(("1", "1", "2", "kv")), self.numbers.choice(("abort", "wait", "keep"))
        pause = self.numbers.uniform(0.1, 3.0)
        threading.Thread(target=self.happen, args=(party, what, details, pause), daemon=True).start()

    def happen(self, party, what, details, pause):
        if not party.busy.acquire(blocking=False):
            return
        try:
            what, result = self.carry_out(party, what, details, pause)
        except (OSError, http.client.HTTPException) as error:
            result = type(error).__name__
        except AssertionError as error:
            result = "failed"
            self.failures.append(f"{what} of {party.name}: {error}"[:500])
        finally:
            party.busy.release()
        with self.lock:
            self.events[f"{'router ' if party is self.router else ''}{what} {result}".strip()] += 1

    def carry_out(self, party, what, details, pause):
        server = party.server
        if what == "turn":
            what = "wake" if server.get("/is_sleeping").json()["is_sleeping"] else "sleep"
        if what == "kill":
            party.restart()
        elif what == "stop":
            server.stand_still()
            time.sleep(pause)
            server.go_on()
        elif what == "wake":
            return what, self.wake(party)
        else:
            return what, self.sleep(party, *details)
        return what, ""

    def sleep(self, party, kind, mode):
        options = {} if kind == "kv" else {"mode": mode, "timeout_ms": SLEEP_TIMEOUT_MS}
        answer = party.server.sleep(kind, **options)
        if answer.status != 200 and kind == "kv":
            party.server.post("/resume")
        if answer.status not in (200, 409, 504):
            self.failures.append(f"sleep {kind} {mode} of {party.name}: {answer}"[:500])
        return "" if answer.status == 200 else str(answer.status)

    def wake(self, party):
        for path in ("/wake_up", "/reload_weights", "/resume"):
            answer = party.server.post(path)
            if answer.status not in (200, 409):
                self.failures.append(f"{path} of {party.name}: {answer}"[:500])
                return str(answer.status)
        return ""

    # --- figures
    def total(self, name, parties=None):
        return int(sum(party.count(name) for party in parties or self.parties))

    def transfers(self):
        """Completed ones: granted, and not failed afterwards."""
        return self.total(COMPLETED, self.consumers)

    def look(self):
        for party in self.parties:
            if party.busy.acquire(blocking=False):
                try:
                    party.look()
                finally:
                    party.busy.release()

    def progress(self, began):
        with self.lock:
            print(f"{time.monotonic() - began:6.0f} s  transfers {self.transfers()}  "
                  f"requests {dict(self.answers)}  events {sum(self.events.values())}  "
                  f"oldest {max((time.monotonic() - t for t in self.pending.values()), default=0):.1f} s",
                  flush=True)

    # --- the run
    def run(self):
        began = time.monotonic()
        warm = [self.ask(body, expected, False) for body, expected in self.requests.all[:8]]
        if warm != ["answer"] * len(warm):
            self.failures.append(f"before any event: {warm}")
        at_start = {party.name: party.descriptors() for party in self.parties}
        clients = [threading.Thread(target=self.client, args=(i,), daemon=True)
                   for i in range(self.args.clients)]
        for thread in clients:
            thread.start()
        next_event, next_line = time.monotonic(), time.monotonic() + 5
        while not self.is_enough(time.monotonic() - began):
            now = time.monotonic()
            if now >= next_event:
                next_event += self.args.interval
                self.event()
                self.look()
            if now >= next_line:
                next_line += 5
                self.progress(began)
            time.sleep(min(0.05, self.args.interval))
        self.done.set()
        for thread in clients:
            thread.join(ENDS_WITHIN + 10)
        if any(thread.is_alive() for thread in clients):
            self.hung += 1
        seconds = time.monotonic() - began
        self.settle(at_start)
        return self.report(seconds)

    def is_enough(self, seconds):
        return seconds > self.args.seconds or (seconds > self.args.least_seconds
                                               and self.transfers() >= self.args.transfers)

    def settle(self, at_start):
        """All awake; then nothing may be left."""
        for party in self.everybody():
            if not party.busy.acquire(timeout=30):
                self.failures.append(f"an event of {party.name} does not end")
        for party in self.parties:
            self.wake(party)
        self.is_within(20, self.all_idle, "blocks in use or requests, all awake")
        for _ in range(2):
            for body, expected in self.requests.all[:4]:
                self.is_within(10, lambda body=body, expected=expected:
                               self.ask(body, expected, False) == "answer", "an answer, all awake")
        self.is_within(20, self.all_idle, "blocks in use after the last requests")
        self.is_within(5, self.no_old_blocks, "old blocks mapped or open")
        for party in self.parties:
            if party.descriptors() > at_start[party.name] + 8:
                self.failures.append(f"{party.name} has {party.descriptors()} descriptors, "
                                     f"{at_start[party.name]} at the start")
            party.look()
        self.memory_is_back()

    def is_within(self, seconds, condition, what):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.failures.append(f"{what}: {self.state()}"[:800])
                return
            time.sleep(0.1)

    def state(self):
        keys = ("state", "cause", "requests_running", "requests_waiting", "blocks_used", "kv_transfer")
        return {party.name: {key: party.server.status().get(key) for key in keys} for party in self.parties}

    def all_idle(self):
        return all(status["state"] == "running" and status["blocks_used"] == status["requests_running"]
                   == status["requests_waiting"] == 0
                   for status in (party.server.status() for party in self.parties))

    def no_old_blocks(self):
        """Consumers hold what producers hold now, and nothing that any producer held before."""
        held = {party.name: party.server.blocks() for party in self.parties}
        mine = {party.name: len(party.server.status()["memory"]) for party in self.parties}
        owned = set().union(*(held[party.name] for party in self.producers))
        return all(len(held[party.name]) <= mine[party.name] for party in self.producers) and all(
            len(held[party.name] - owned) <= mine[party.name] for party in self.consumers)

    def memory_is_back(self):
        """Asleep, all of them together hold no page of a device."""
        for party in self.parties:
            answer = party.server.sleep("1", timeout_ms=SLEEP_TIMEOUT_MS)
            if answer.status != 200:
                self.failures.append(f"the last sleep of {party.name}: {answer}"[:500])
        for party in self.parties:
            blocks, shared = len(party.server.blocks()), party.server.resident_bytes("RssShmem")
            if blocks or shared > 1 << 20:
                self.failures.append(f"{party.name} asleep holds {blocks} blocks, {shared} bytes shared")

    def report(self, seconds):
        result = {
            "ok": False, "enough": self.transfers() >= self.args.transfers,
            "transfers": self.transfers(), "requests": sum(self.answers.values()),
            "answers": self.answers["answer"], "wrong": len(self.wrong), "hung": self.hung,
            "errors": dict(self.errors), "events": dict(self.events),
            "restarts": sum(party.deaths // 2 for party in self.everybody()),
            "transferred_tokens": self.total("dormouse:kv_transferred_tokens_total"),
            "recomputed_tokens": self.total("dormouse:kv_recomputed_tokens_total"),
            "stale_refused": self.total("dormouse:kv_stale_references_refused_total"),
            "failures": self.failures[:20], "seconds": round(seconds, 1), "seed": self.args.seed}
        result["ok"] = result["enough"] and not (self.wrong or self.hung or self.failures)
        if self.wrong:
            result["first_wrong"] = self.wrong[0]
        return result


def main():
    with tempfile.TemporaryDirectory(prefix="chaos.") as name:
        folder = pathlib.Path(name)
        model = ARGS.model or make_model(folder / "tiny.gguf", context=2048, layers=3)
        chaos = None
        try:
            chaos = Chaos(ARGS, model, folder)
            result = chaos.run()
        finally:
            if chaos:
                chaos.kill()
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
