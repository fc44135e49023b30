#!/usr/bin/env python3
"""The other names of control calls, as programs written for other engines use them."""

import unittest

from harness import ServerTest, wait_until

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "temperature": 0, "ignore_eos": True}


class Aliases(ServerTest):
    def test_the_names_of_others_work(self):
        text = self.server.text()
        for path, body in (("/release_memory_occupation", {"tags": ["kv_cache", "weights"]}),
                           ("/release_memory_occupation", {}), ("/resume_memory_occupation", {"tags": None}),
                           ("/resume_memory_occupation", {}), ("/pause_generation", {}),
                           ("/continue_generation", {}), ("/wakeup", None)):
            with self.subTest(path=path, body=body):
                self.assertIsInstance(self.ok(self.server.post(path, body)), dict)
        self.assertEqual(self.server.text(), text)

    def test_others_questions_are_answered(self):
        for path in ("/flush_cache", "/health_generate", "/server_info", "/ping"):
            with self.subTest(path):
                self.assertEqual(self.server.get(path).status, 200)

    def test_health_generate_answers_while_asleep(self):
        self.ok(self.server.post("/sleep"))
        self.assertEqual(self.server.get("/health_generate", timeout=1).status, 200)
        self.assertTrue(self.ok(self.server.get("/is_sleeping"))["is_sleeping"])

    def test_abort_requests_ends_them_all(self):
        stream = self.server.stream("/v1/completions", LONG)
        stream.next_text()
        self.assertEqual(self.ok(self.server.post("/abort_requests", {"request_ids": []}))["aborted"], 1)
        self.assertEqual(stream.rest().finish_reasons(), ["abort"])

    def test_abort_requests_ends_the_one_that_is_named(self):
        streams = [self.server.stream("/v1/completions", LONG) for _ in range(2)]
        for stream in streams:
            stream.next_text()
        name = streams[0].events[0]["id"]
        self.assertEqual(self.ok(self.server.post("/abort_requests", {"request_ids": [name]}))["aborted"], 1)
        self.assertEqual(streams[0].rest().finish_reasons(), ["abort"])
        self.assertEqual(streams[1].rest().finish_reasons(), ["length"])

    def test_a_trainers_step_in_the_order_of_trainers(self):
        text = self.server.text()
        for _ in range(2):
            self.ok(self.server.post("/sleep?level=2"))
            self.ok(self.server.post("/wake_up?tags=weights"))
            self.ok(self.server.post("/reload_weights"))
            self.ok(self.server.post("/wake_up?tags=kv_cache"))
            self.ok(self.server.post("/reset_prefix_cache", {"reset_running_requests": True}))
            self.assertEqual(self.server.text(), text)

    def test_scheduling_is_a_tag_of_the_pause(self):
        self.ok(self.server.post("/sleep?level=0"))
        self.assertTrue(self.ok(self.server.get("/is_paused"))["is_paused"])
        self.ok(self.server.post("/wake_up?tags=scheduling"))
        self.assertFalse(self.ok(self.server.get("/is_paused"))["is_paused"])
        self.ok(self.server.post("/sleep?level=1"))
        self.assertEqual(self.ok(self.server.post("/wake_up?tags=scheduling"))["status"], "sleeping")
        self.assertTrue(self.ok(self.server.get("/is_sleeping"))["is_sleeping"])

    def test_pause_keeps_or_clears_the_cache_as_told(self):
        prompt = "A prompt of several blocks that is asked once and again. " * 4
        def cached():
            return (self.server.complete(prompt)["usage"].get("prompt_tokens_details") or {}).get(
                "cached_tokens") or 0
        cached()
        self.ok(self.server.post("/pause?clear_cache=false"))
        self.ok(self.server.post("/resume"))
        self.assertGreater(cached(), 0)
        self.ok(self.server.post("/pause"))
        self.ok(self.server.post("/resume"))
        self.assertEqual(cached(), 0)

    def test_a_pause_with_wait_answers_when_all_have_ended(self):
        stream = self.server.stream("/v1/completions", {**LONG, "max_tokens": 600})
        stream.next_text()
        self.ok(self.server.post("/pause?mode=wait"))
        self.assertEqual(self.server.status()["requests_running"], 0)
        self.assertEqual(stream.rest().finish_reasons(), ["length"])
        wait_until(lambda: self.server.status()["state"] == "paused", what="paused")


if __name__ == "__main__":
    unittest.main()
