"""Engines that exchange KV cache, the router before them, and the two legs of a request by hand."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import unittest

from harness import COMMAND, SCRATCH, Server, make_model, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# What a proxy sends with the prefill leg; null is the same as absent.
ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
       "remote_block_ids": None, "remote_host": None, "remote_port": None}
BLOCK = "dormouse-block"


def transfer_config(connector="IpcConnector", role="kv_both", engine_id=None, port=None, policy=None,
                    module=None, **extra):
    config = {"kv_connector": connector, "kv_role": role, "engine_id": engine_id, "kv_port": port,
              "kv_load_failure_policy": policy, "kv_connector_module_path": module}
    return {**{key: value for key, value in config.items() if value is not None},
            "kv_connector_extra_config": extra}


class Instance(Server):
    """An engine with a connector."""

    def __init__(self, model, config, *flags, **options):
        self.config = config
        super().__init__(model, "--kv-transfer-config", json.dumps(config), *flags, **options)

    @property
    def engine_id(self):
        return self.config["engine_id"]

    def counter(self, name):
        """The sum over all labels; a metric that is not there is an error."""
        return sum(self.metrics()[f"dormouse:{name}"].values())

    def transferred(self):
        return self.counter("kv_transferred_tokens_total")

    def recomputed(self):
        return self.counter("kv_recomputed_tokens_total")

    def blocks(self):
        """The identities of the device's blocks that this process maps or holds open."""
        return mapped_blocks(self.pid) | open_blocks(self.pid)

    def stand_still(self):
        """Stops the process; returns when the last of its threads has stopped."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: all(state == "T" for state in self._thread_states()), what="a stopped process")

    def _thread_states(self):
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            yield (task / "stat").read_text().rsplit(")", 1)[1].split()[0]

    def go_on(self):
        self.signal(signal.SIGCONT)

    # --- sleep, in the three ways that unmap the cache
    def sleep(self, kind="1", **options):
        if kind == "kv":
            paused = self.post("/pause")
            assert paused.status == 200, paused
            path = "/release_kv_cache_memory?"
        else:
            path = f"/sleep?level={kind}&"
        return self.post(path + "&".join(f"{name}={value}" for name, value in options.items()))

    def wake(self, kind="1"):
        """Back to serving, whatever put it to sleep."""
        answers = [self.post("/wake_up")]
        if kind == "2":
            answers.append(self.post("/reload_weights"))
        if kind == "kv":
            answers.append(self.post("/resume"))
        for answer in answers:
            assert answer.status == 200, answer


def start_failure(model, config, *flags, seconds=5):
    """What a server says that does not even start."""
    text = config if isinstance(config, str) else json.dumps(config)
    try:
        done = subprocess.run([COMMAND, "serve", model, "--port", "0", "--kv-transfer-config", text, *flags],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"accepted: {text}") from None
    assert done.returncode != 0, done.stdout
    return done.stdout


class Router(Server):
    URL = re.compile(r"API +http://[^:]+:(\d+)")

    def __init__(self, prefill, decode, *flags, **options):
        self.prefill, self.decode = list(map(url, prefill)), list(map(url, decode))
        super().__init__(None, *flags, **options)

    def command(self, _model, port):
        return [COMMAND, "router", "--prefill", *self.prefill, "--decode", *self.decode,
                "--port", str(port)]

    def state_of(self, server):
        (found,) = [entry["state"] for entry in self.status()["instances"] if entry["url"] == url(server)]
        return found


def url(server):
    return server if isinstance(server, str) else f"http://127.0.0.1:{server.port}"


def mapped_blocks(pid):
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {int(line.split()[4]) for line in maps.splitlines() if BLOCK in line}


def open_blocks(pid):
    found = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if BLOCK in os.readlink(entry):
                found.add(os.stat(entry).st_ino)
        except FileNotFoundError:
            continue
    return found


def other_weights(model, path):
    """A copy with the shapes and the size of `model`, but other weights; put in place in one step."""
    data = bytearray(model.read_bytes())
    data[-300_000:] = bytes(byte ^ 1 for byte in data[-300_000:])
    made = path.with_suffix(".new")
    made.write_bytes(data)
    return made.rename(path)


# --- requests
def prompt(length, seed=0):
    """Token ids, so that the length is exact; another seed shares no block."""
    numbers = random.Random(f"{length} {seed}")
    return [numbers.randrange(20, 250) for _ in range(length)]


def completion(tokens, **options):
    return {"prompt": tokens, "max_tokens": 12, "temperature": 0, "logprobs": 2, "ignore_eos": True,
            "return_token_ids": True, **options}


def conversation(text, **options):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0,
            "logprobs": True, "top_logprobs": 1, "ignore_eos": True, "return_token_ids": True, **options}


def path_of(body):
    return CHAT if "messages" in body else COMPLETIONS


def essence(answer):
    """What must be equal whichever way an answer was made: token ids, text, probabilities, end."""
    return [(choice["index"], tuple(choice["token_ids"]),
             choice["message"]["content"] if "message" in choice else choice["text"],
             probabilities(choice["logprobs"]), choice["finish_reason"]) for choice in answer["choices"]]


def probabilities(logprobs):
    if "content" in logprobs:
        return tuple(entry["logprob"] for entry in logprobs["content"])
    return tuple(logprobs["token_logprobs"])


def streamed_essence(stream):
    stream.rest()
    assert stream.done, f"no [DONE] after {stream.events[-1:]}"
    choices = [choice for event in stream.events for choice in event["choices"]]
    found = []
    for index in sorted({choice["index"] for choice in choices}):
        mine = [choice for choice in choices if choice["index"] == index]
        found.append((index, tuple(token for choice in mine for token in choice.get("token_ids") or ()),
                      stream.text(index),
                      tuple(value for choice in mine if choice.get("logprobs")
                            for value in probabilities(choice["logprobs"])),
                      stream.finish_reasons(index)[0]))
    return found


def single_answer(server, body):
    answer = server.post(path_of(body), body)
    assert answer.status == 200, answer
    return essence(answer.json())


def prefill_leg(server, body, **options):
    """The parameters for the decode leg."""
    whole = {"stream_options", "min_tokens", "n"}
    ask = {**{key: value for key, value in body.items() if key not in whole},
           "max_tokens": 1, "stream": False, "kv_transfer_params": ASK}
    answer = server.post(path_of(body), ask, **options)
    assert answer.status == 200, answer
    params = answer.json().get("kv_transfer_params")
    assert params, f"no kv_transfer_params: {answer}"
    return params


def decode_leg(server, body, params, **options):
    return server.post(path_of(body), {**body, "kv_transfer_params": params}, **options)


def cached_tokens(answer):
    return (answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


class TransferTest(unittest.TestCase):
    """A folder, a model, and one server without a connector that knows the right answers."""

    MODEL = {"context": 2048, "layers": 3}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="pd.", dir=SCRATCH)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = make_model(cls.folder / "tiny.gguf", **cls.MODEL)
        cls.reference = cls.start_once(Server(cls.model))
        cls.seeds = iter(range(1, 1 << 30))
        cls.start_class()

    @classmethod
    def start_class(cls):
        """Servers that the class's tests share."""

    @classmethod
    def start_once(cls, server):
        cls.addClassCleanup(server.kill)
        return server

    def start(self, server):
        self.addCleanup(server.kill)
        return server

    def body(self, length=100, **options):
        """A request that nobody has seen before."""
        return completion(prompt(length, next(self.seeds)), **options)

    def right(self, answer, body):
        """The answer is 200 and the one that a single instance gives."""
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(essence(answer.json()), single_answer(self.reference, body))

    def ok(self, answer):
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def failed_load(self, answer, *words):
        self.assertEqual(answer.status, 502, answer)
        message = answer.json()["error"]["message"]
        for word in words:
            self.assertIn(word, message)
        return message
