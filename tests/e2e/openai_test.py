#!/usr/bin/env python3
"""The official `openai` client against the server. It comes from the package index into a virtual
environment of the build tree; when it cannot be had, the test fails."""

import os
import pathlib
import subprocess
import sys

SCRATCH = pathlib.Path(os.environ["DORMOUSE_SCRATCH"])
CLIENT = "openai>=1.60"


def client_python():
    """The interpreter of an environment that has the client."""
    folder = SCRATCH / "openai-client"
    python = folder / "bin/python3"
    if subprocess.run([python, "-c", "import openai"], capture_output=True).returncode \
            if python.exists() else True:
        print(f"installing {CLIENT} into {folder}", flush=True)
        for command in ([sys.executable, "-m", "venv", "--clear", folder],
                        [python, "-m", "pip", "install", "--quiet", CLIENT]):
            if subprocess.run(command).returncode:
                sys.exit(f"FAILED: {CLIENT} could not be installed; the package index must be reachable")
    return python


if __name__ == "__main__" and "--with-client" not in sys.argv:
    program = str(client_python())
    os.execv(program, [program, *sys.argv, "--with-client"])

import asyncio  # noqa: E402
import unittest  # noqa: E402

import openai  # noqa: E402
from harness import ServerTest  # noqa: E402


class OpenAiClient(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.address = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.address, api_key="unused", max_retries=0, timeout=30)
        cls.addClassCleanup(cls.client.close)

    MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]

    def test_models(self):
        (model,) = self.client.models.list().data
        self.assertEqual((model.id, model.object), ("tiny", "model"))
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")

    def test_completions(self):
        def ask(**options):
            return self.client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=20,
                                                  temperature=0, **options)
        whole = ask(logprobs=2)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.usage.completion_tokens, 20)
        self.assertEqual(len(whole.choices[0].logprobs.token_logprobs), 20)
        chunks = list(ask(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(choice.text for chunk in chunks for choice in chunk.choices),
                         whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)

    def test_chat(self):
        def ask(**options):
            return self.client.chat.completions.create(model="tiny", messages=self.MESSAGES, temperature=0,
                                                       max_completion_tokens=20, **options)
        whole = ask(logprobs=True, top_logprobs=2, n=2)
        self.assertEqual([choice.message.role for choice in whole.choices], ["assistant"] * 2)
        self.assertEqual(whole.choices[0].message.content, whole.choices[1].message.content)
        self.assertEqual(len(whole.choices[0].logprobs.content[0].top_logprobs), 2)
        text = "".join(choice.delta.content or "" for chunk in ask(stream=True) for choice in chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)

    def test_the_stream_helper_of_the_client(self):
        # It takes an answer that ends by its length for an error, so this one is stopped by a string.
        text = self.client.chat.completions.create(model="tiny", messages=self.MESSAGES, temperature=0,
                                                   max_completion_tokens=20).choices[0].message.content
        with self.client.chat.completions.stream(model="tiny", messages=self.MESSAGES, temperature=0,
                                                 max_completion_tokens=20, stop=text[-2:]) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "content.delta")
            (choice,) = stream.get_final_completion().choices
        self.assertEqual((choice.finish_reason, choice.message.content), ("stop", deltas))
        self.assertTrue(text.startswith(deltas))

    def test_a_bad_request_names_its_field(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="tiny", prompt="x", top_p=-1)
        self.assertEqual((caught.exception.status_code, caught.exception.param), (400, "top_p"))
        self.assertTrue(caught.exception.message)

    def test_another_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="another", prompt="x")

    def test_asleep_is_a_503(self):
        self.ok(self.server.post("/sleep"))
        for ask in (lambda: self.client.completions.create(model="tiny", prompt="x"),
                    lambda: self.client.chat.completions.create(model="tiny", messages=self.MESSAGES),
                    lambda: list(self.client.completions.create(model="tiny", prompt="x", stream=True))):
            with self.assertRaises(openai.APIStatusError) as caught:
                ask()
            self.assertEqual(caught.exception.status_code, 503)
            self.assertTrue(caught.exception.response.headers["Retry-After"])
        self.assertEqual(self.client.models.list().data[0].id, "tiny")

    def test_retries_outlast_a_short_sleep(self):
        self.ok(self.server.post("/sleep"))
        async def both():
            client = openai.AsyncOpenAI(base_url=self.address, api_key="unused", max_retries=5, timeout=30)
            asked = asyncio.create_task(client.completions.create(model="tiny", prompt="x", max_tokens=3))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(self.server.post, "/wake_up")
            answer = await asked
            await client.close()
            return answer
        self.assertTrue(asyncio.run(both()).choices[0].text)

    def test_a_stream_cut_short_by_a_sleep_ends_with_a_reason(self):
        stream = self.client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=1900,
                                                temperature=0, stream=True, extra_body={"ignore_eos": True})
        chunks = iter(stream)
        next(chunks)
        self.ok(self.server.post("/sleep"))
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices
                   if choice.finish_reason]
        self.assertEqual(reasons, ["abort"])


if __name__ == "__main__":
    sys.argv.remove("--with-client")
    unittest.main()
