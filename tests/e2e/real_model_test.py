#!/usr/bin/env python3
"""A real model of 135 million parameters: it says sensible things, and the same ones after every sleep.

DORMOUSE_MODEL names its file; without it the test is skipped."""

import os
import sys
import time
import unittest

from harness import Background, Server, ServerTest

QUESTIONS = ["What is the capital of France? Answer briefly.", "Name three colours.", "What is 2 + 2?",
             "Write one sentence about the sea."]


class RealModel(ServerTest):
    @classmethod
    def setUpClass(cls):
        started = time.monotonic()
        cls.server = Server(os.environ["DORMOUSE_MODEL"], "--max-model-len", 1024)
        cls.addClassCleanup(cls.server.kill)
        cls.server.text("x", max_tokens=1)
        print(f"start to first token: {time.monotonic() - started:.2f} s", file=sys.stderr)

    def answers(self):
        return Background(*[lambda question=question: self.server.chat(question, max_tokens=24)["choices"]
                            for question in QUESTIONS]).join(120)

    def test_it_knows_the_capital_of_france(self):
        self.assertIn("Paris", self.server.chat(QUESTIONS[0])["choices"][0]["message"]["content"])

    def test_it_stops_by_itself(self):
        answer = self.server.chat(QUESTIONS[0], max_tokens=200)
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        self.assertNotIn("<|im_end|>", answer["choices"][0]["message"]["content"])

    def test_answers_are_the_same_after_every_sleep(self):
        before = self.answers()
        for level in (1, 2, 1):
            with self.subTest(level=level):
                self.ok(self.server.post(f"/sleep?level={level}"))
                self.assertEqual(self.server.status()["memory"]["weights"]["mapped"], 0)
                self.ok(self.server.post("/wake_up"))
                if level == 2:
                    self.ok(self.server.post("/reload_weights"))
                self.assertEqual(self.answers(), before)

    def test_a_kept_answer_goes_on(self):
        ask = {"prompt": "The sea is", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        expected = self.ok(self.server.post("/v1/completions", ask))["choices"][0]["text"]
        stream = self.server.stream("/v1/completions", ask)
        stream.next_text()
        self.ok(self.server.post("/sleep?mode=keep"))
        self.ok(self.server.post("/wake_up"))
        self.assertEqual(stream.rest().text(), expected)

    def test_characters_of_several_tokens_come_whole(self):
        for text in ("日本語 🙂", "naïve café", "👩‍👩‍👧"):
            tokens = self.ok(self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False}))
            back = self.ok(self.server.post("/detokenize", {"tokens": tokens["tokens"]}))
            self.assertEqual(back["prompt"], text)
        ask = {"prompt": "🙂🙃🙂🙃🙂🙃", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        whole = self.ok(self.server.post("/v1/completions", ask))["choices"][0]["text"]
        self.assertEqual(self.server.stream("/v1/completions", ask).rest().text(), whole)


if __name__ == "__main__":
    if not os.environ.get("DORMOUSE_MODEL"):
        print("DORMOUSE_MODEL names no model; skipped")
        sys.exit(77)
    unittest.main()
