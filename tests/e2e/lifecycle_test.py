#!/usr/bin/env python3
"""Sleep and wake-up as an operator and a trainer call them, with requests under way and without."""

import concurrent.futures
import itertools
import pathlib
import tempfile
import threading
import unittest

from harness import SCRATCH, Background, Server, ServerTest, make_model, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "ignore_eos": True}


class LifecycleTest(ServerTest):
    def sleep(self, level=1, mode="abort"):
        return self.ok(self.server.post(f"/sleep?level={level}&mode={mode}"))

    def wake(self, *tags):
        query = "&".join(f"tags={tag}" for tag in tags)
        return self.ok(self.server.post("/wake_up" + (f"?{query}" if query else "")))

    def is_sleeping(self):
        return self.ok(self.server.get("/is_sleeping"))["is_sleeping"]

    def answers(self):
        """One answer of each kind: greedy, seeded, chat, with logprobs."""
        return [self.server.complete(max_tokens=40, logprobs=1)["choices"],
                self.server.complete(max_tokens=40, temperature=1, seed=11)["choices"],
                self.server.chat(max_tokens=40)["choices"],
                self.server.text("A longer prompt, so that it has blocks to share. " * 5)]


class SleepAndWake(LifecycleTest):
    def test_answers_are_the_same_after_every_kind_of_sleep(self):
        before = self.answers()
        for level, mode in itertools.product((0, 1, 2), ("abort", "wait", "keep")):
            with self.subTest(level=level, mode=mode):
                self.sleep(level, mode)
                self.assertTrue(self.is_sleeping())
                self.wake()
                if level == 2:
                    self.ok(self.server.post("/reload_weights"))
                self.assertFalse(self.is_sleeping())
                self.assertEqual(self.answers(), before)

    def test_answers_are_the_same_after_a_wake_up_in_parts(self):
        before = self.answers()
        for tags in (("weights", "kv_cache"), ("kv_cache", "weights"), ("weights", "weights", "kv_cache")):
            with self.subTest(tags=tags):
                self.sleep()
                for tag in tags:
                    self.assertTrue(self.is_sleeping())
                    self.wake(tag)
                self.assertFalse(self.is_sleeping())
                self.assertEqual(self.answers(), before)

    def test_replies_tell_what_happened(self):
        slept = self.sleep()
        self.assertEqual((slept["status"], slept["level"]), ("sleeping", 1))
        self.assertEqual(slept["state"], "asleep")
        self.assertGreater(slept["freed_bytes"], 0)
        self.assertGreater(slept["seconds"], 0)
        self.assertLessEqual({"weights", "kv_cache"}, set(slept["tags"]))
        part = self.wake("weights")
        self.assertEqual((part["status"], part["tags_woken"]), ("sleeping", ["weights"]))
        whole = self.wake()
        self.assertEqual((whole["status"], whole["state"]), ("awake", "running"))

    def test_a_sleep_is_over_when_it_is_answered(self):
        before = self.server.status()["memory"]
        self.sleep()
        asleep = self.server.status()
        self.assertEqual(asleep["state"], "asleep")
        self.assertEqual(set(asleep["tags_asleep"]), set(before))
        for tag in ("weights", "kv_cache"):
            self.assertEqual(asleep["memory"][tag]["mapped"], 0)
            self.assertEqual(asleep["memory"][tag]["asleep"], before[tag]["mapped"])
        self.wake()
        for tag, usage in self.server.status()["memory"].items():
            self.assertEqual(usage["mapped"], before[tag]["mapped"], tag)
            self.assertEqual(usage["leaked"], 0, tag)

    def test_each_mapping_has_its_generation(self):
        before = self.server.status()
        self.sleep()
        self.wake("weights")
        self.wake("kv_cache")
        after = self.server.status()
        for name in ("generation_weights", "generation_kv_cache"):
            self.assertEqual(after[name], before[name] + 1)

    def test_nothing_of_the_prefix_cache_outlives_a_sleep(self):
        prompt = "A prompt that fills several blocks of the cache, asked again and again. " * 3
        def cached():
            return (self.server.complete(prompt)["usage"].get("prompt_tokens_details") or {}).get(
                "cached_tokens") or 0
        cached()
        self.assertGreater(cached(), 0)
        self.sleep()
        self.wake()
        self.assertEqual(cached(), 0)

    # --- what the others see
    def test_inference_is_refused_while_asleep(self):
        self.sleep()
        for path, ask in ((COMPLETIONS, {"prompt": "x"}),
                          (CHAT, {"messages": [{"role": "user", "content": "x"}]})):
            for stream in (False, True):
                with self.subTest(path=path, stream=stream):
                    answer = self.server.post(path, {**ask, "stream": stream}, timeout=5)
                    self.refused(answer, 503)
                    self.assertGreater(int(answer.headers["Retry-After"]), 0)

    def test_questions_are_answered_while_asleep_and_wake_nobody(self):
        self.sleep()
        for _ in range(3):
            for path in ("/health", "/v1/models", "/status", "/metrics", "/version", "/is_sleeping",
                         "/is_paused"):
                self.assertEqual(self.server.get(path, timeout=5).status, 200, path)
        ready = self.server.get("/health/ready")
        self.assertEqual(ready.status, 503)
        made = self.ok(self.server.post("/tokenize", {"prompt": "Hello"}))
        self.assertEqual(self.ok(self.server.post("/detokenize", {"tokens": made["tokens"]}))["prompt"][-5:],
                         "Hello")
        self.assertTrue(self.is_sleeping())
        self.assertEqual(self.server.status()["memory"]["weights"]["mapped"], 0)

    def test_metrics_tell_the_truth_about_sleep(self):
        def state():
            states = self.server.metrics()["vllm:engine_sleep_state"]
            self.assertEqual(sum(states.values()), 1, states)
            return next(labels for labels, value in states.items() if value)
        self.assertIn('sleep_state="awake"', state())
        self.sleep(1)
        self.assertIn('sleep_state="weights_offloaded"', state())
        self.wake("weights")
        self.assertNotIn('sleep_state="awake"', state())
        self.wake()
        self.sleep(2)
        self.assertIn('sleep_state="discard_all"', state())
        self.wake()
        self.ok(self.server.post("/reload_weights"))
        self.ok(self.server.post("/release_kv_cache_memory"))
        self.assertNotIn('sleep_state="awake"', state())

    def test_half_awake_is_asleep(self):
        for tag in ("weights", "kv_cache"):
            with self.subTest(tag):
                self.sleep()
                self.wake(tag)
                self.assertTrue(self.is_sleeping())
                self.assertEqual(self.server.get("/health/ready").status, 503)
                self.refused(self.server.post(COMPLETIONS, {"prompt": "x"}, timeout=5), 503)
                self.refused(self.server.post("/resume"), 409)
                self.refused(self.server.post(COMPLETIONS, {"prompt": "x"}, timeout=5), 503)
                self.wake()

    # --- again, and in another order
    def test_a_second_sleep_changes_nothing(self):
        self.sleep()
        before = self.server.status()["memory"]
        self.assertEqual(self.sleep()["status"], "sleeping")
        self.assertEqual(self.server.status()["memory"], before)

    def test_a_deeper_sleep_gives_the_backup_back(self):
        self.sleep(1)
        self.assertGreater(self.server.status()["memory"]["weights"]["backed_up"], 0)
        self.sleep(2)
        status = self.server.status()
        self.assertEqual(status["memory"]["weights"]["backed_up"], 0)
        self.assertEqual(status["sleep_level"], 2)

    def test_a_lighter_sleep_is_refused(self):
        self.sleep(2)
        self.refused(self.server.post("/sleep?level=1"), 409)
        self.assertEqual(self.server.status()["sleep_level"], 2)

    def test_a_wake_up_of_who_is_awake_changes_nothing(self):
        before = self.server.status()
        for tags in ((), ("weights",), ("kv_cache",), ("weights", "kv_cache"), ("scheduling",)):
            self.assertEqual(self.wake(*tags)["status"], "awake")
        after = self.server.status()
        self.assertEqual((after["generation_weights"], after["memory"]),
                         (before["generation_weights"], before["memory"]))

    def test_a_wake_up_of_one_awake_and_one_asleep_wakes_the_other(self):
        self.sleep()
        self.wake("weights")
        self.assertEqual(self.wake("weights", "kv_cache")["status"], "awake")
        self.assertTrue(self.server.text())

    def test_an_unknown_tag_changes_nothing(self):
        self.sleep()
        asleep = self.server.status()["tags_asleep"]
        for query in ("tags=nothing", "tags=weights&tags=nothing", "tags=", "tags=weights,kv_cache",
                      "tags=Weights", "tags=" + "x" * 3000):
            with self.subTest(query[:30]):
                self.refused(self.server.post(f"/wake_up?{query}"), 400)
                self.assertEqual(self.server.status()["tags_asleep"], asleep)
        self.refused(self.server.post("/wake_up", {"tags": ["weights", "nothing"]}), 400)
        self.refused(self.server.post("/wake_up", {"tags": "nothing"}), 400)
        self.refused(self.server.post("/wake_up", {"tags": 5}), 400)
        self.assertEqual(self.server.status()["tags_asleep"], asleep)

    def test_an_unknown_level_or_mode_changes_nothing(self):
        for level in ("-1", "4", "7", "2147483648", "9007199254740993", "1e308", "NaN", "x", "", "1.5", "0x1"):
            with self.subTest(level=level):
                self.refused(self.server.post(f"/sleep?level={level}"), 400)
        for level in ("-1", "7", "2147483648", "9007199254740993", "1e308", "NaN", '"x"', "[1]", "true", "1.5"):
            with self.subTest(json_level=level):
                self.refused(self.server.post("/sleep", f'{{"level": {level}}}'), 400)
        for path in ("/sleep", "/pause"):
            for mode in ("x", "", "Abort", "5"):
                with self.subTest(path=path, mode=mode):
                    self.refused(self.server.post(f"{path}?mode={mode}"), 400)
        self.assertFalse(self.is_sleeping())
        self.assertEqual(self.server.status()["state"], "running")

    def test_a_parameter_that_is_nearly_a_known_one_changes_nothing(self):
        for path, body in (("/sleep?levle=2", None), ("/sleep", {"levle": 2}), ("/wake_up?tag=weights", None)):
            with self.subTest(path=path, body=body):
                self.refused(self.server.post(path, body), 400)
        self.assertFalse(self.is_sleeping())

    def test_a_parameter_unlike_any_known_one_is_ignored(self):
        for path, body in (("/reset_prefix_cache?device=gpu", None), ("/resume?mode=keep", None),
                           ("/resume", {"model": "x"})):
            with self.subTest(path=path, body=body):
                self.ok(self.server.post(path, body))

    def test_options_come_in_the_query_or_in_the_body(self):
        for path, body in (("/sleep?level=2", None), ("/sleep", {"level": 2}), ("/sleep", {"level": "2"}),
                           ("/sleep?level=2", {"level": 2}), ("/sleep", {"level": 2, "mode": None}),
                           ("/sleep?level=2", b""), ("/sleep?level=2", {})):
            with self.subTest(path=path, body=body):
                self.assertEqual(self.ok(self.server.post(path, body))["level"], 2)
                self.ok(self.server.post("/wake_up", b""))
                self.ok(self.server.post("/reload_weights"))
        self.refused(self.server.post("/sleep?level=2", {"level": 1}), 400)
        self.assertFalse(self.is_sleeping())
        self.sleep()
        self.ok(self.server.post("/wake_up", {"tags": ["weights"]}))
        self.assertEqual(self.server.status()["tags_asleep"], ["kv_cache"])
        self.ok(self.server.post("/wake_up", {"tags": None}))
        self.assertFalse(self.is_sleeping())

    # --- level 2
    def test_level_2_serves_nothing_until_the_weights_are_loaded_again(self):
        before = self.answers()
        self.sleep(2)
        woken = self.wake()
        self.assertEqual((woken["status"], woken["next"]), ("paused", "POST /reload_weights"))
        self.assertFalse(self.server.status()["weights_valid"])
        self.refused(self.server.post("/resume"), 409)
        self.refused(self.server.post(COMPLETIONS, {"prompt": "x"}, timeout=5), 503)
        self.assertEqual(self.server.get("/health/ready").status, 503)
        self.ok(self.server.post("/reload_weights"))
        self.assertTrue(self.server.status()["weights_valid"])
        self.assertEqual(self.answers(), before)

    def test_weights_may_be_loaded_again_before_the_cache_wakes(self):
        before = self.answers()
        self.sleep(2)
        self.wake("weights")
        self.ok(self.server.post("/reload_weights"))
        self.wake("kv_cache")
        self.assertEqual(self.answers(), before)

    def test_a_reload_of_good_weights_changes_no_answer(self):
        before = self.answers()
        self.ok(self.server.post("/reload_weights"))
        self.assertEqual(self.answers(), before)

    def test_a_reload_while_asleep_is_refused(self):
        self.sleep(2)
        self.refused(self.server.post("/reload_weights"), 409)
        self.assertTrue(self.is_sleeping())

    # --- pause, cache
    def test_a_pause_holds_requests_until_it_ends(self):
        expected = self.server.text()
        self.assertEqual(self.ok(self.server.post("/pause"))["status"], "paused")
        self.assertTrue(self.ok(self.server.get("/is_paused"))["is_paused"])
        self.assertTrue(self.is_sleeping())
        held = Background(self.server.text, self.server.text)
        wait_until(lambda: self.server.status()["requests_waiting"] == 2, what="two requests that wait")
        self.assertEqual(self.ok(self.server.post("/resume"))["status"], "resumed")
        self.assertEqual(held.join(), [expected] * 2)
        self.assertFalse(self.ok(self.server.get("/is_paused"))["is_paused"])

    def test_a_resume_of_who_runs_changes_nothing(self):
        self.assertEqual(self.ok(self.server.post("/resume"))["status"], "resumed")

    def test_the_cache_alone_can_be_given_back(self):
        before = self.answers()
        self.ok(self.server.post("/pause"))
        self.assertEqual(self.ok(self.server.post("/release_kv_cache_memory"))["status"],
                         "kv_cache_released")
        status = self.server.status()
        self.assertEqual(status["tags_asleep"], ["kv_cache"])
        self.assertGreater(status["memory"]["weights"]["mapped"], 0)
        self.refused(self.server.post(COMPLETIONS, {"prompt": "x"}, timeout=5), 503)
        self.wake("kv_cache")
        self.ok(self.server.post("/resume"))
        self.assertEqual(self.answers(), before)

    def test_a_reset_of_the_prefix_cache_forgets(self):
        prompt = "Another prompt that fills several blocks of the cache, again and again. " * 3
        self.server.text(prompt)
        for body in (None, {"reset_running_requests": False}, {}):
            self.assertTrue(self.ok(self.server.post("/reset_prefix_cache", body))["success"])
        details = self.server.complete(prompt)["usage"].get("prompt_tokens_details") or {}
        self.assertFalse(details.get("cached_tokens"))


class UnderWay(LifecycleTest):
    """With an answer that is being streamed, long enough to be met under way."""
    MODEL = {"context": 8192}

    def setUp(self):
        super().setUp()
        if not hasattr(type(self), "expected"):
            type(self).expected = self.server.text(LONG["prompt"], max_tokens=LONG["max_tokens"],
                                                   ignore_eos=True)
        self.stream = self.server.stream(COMPLETIONS, LONG)
        self.addCleanup(self.stream.close)
        self.stream.next_text()

    def test_abort_ends_it_with_a_reason(self):
        self.sleep(1, "abort")
        self.stream.rest()
        self.assertTrue(self.stream.done)
        self.assertEqual(self.stream.finish_reasons(), ["abort"])
        self.assertTrue(self.expected.startswith(self.stream.text()))
        self.assertLess(len(self.stream.text()), len(self.expected))

    def test_wait_lets_it_finish(self):
        sleep = Background(lambda: self.sleep(1, "wait"))
        self.stream.rest()
        self.assertEqual(self.stream.finish_reasons(), ["length"])
        self.assertEqual(self.stream.text(), self.expected)
        self.assertEqual(sleep.join()[0]["status"], "sleeping")

    def test_keep_continues_after_the_wake_up(self):
        for level in (0, 1):
            with self.subTest(level=level):
                stream = self.server.stream(COMPLETIONS, LONG)
                stream.next_text()
                self.sleep(level, "keep")
                self.assertTrue(self.is_sleeping())
                self.wake()
                stream.rest()
                self.assertEqual(stream.finish_reasons(), ["length"])
                self.assertEqual(stream.text(), self.expected)

    def test_keep_survives_the_loss_of_the_weights(self):
        self.sleep(2, "keep")
        self.wake()
        self.ok(self.server.post("/reload_weights"))
        self.stream.rest()
        self.assertEqual(self.stream.finish_reasons(), ["length"])
        self.assertEqual(self.stream.text(), self.expected)

    def test_a_kept_request_can_be_hung_up_on(self):
        self.sleep(1, "keep")
        self.stream.close()
        self.server.idle()
        self.wake()

    def test_a_wake_up_overtakes_a_sleep_that_waits(self):
        sleep = Background(lambda: self.server.post("/sleep?level=1&mode=wait"))
        wait_until(lambda: self.server.status()["state"] in ("pausing", "sleeping"), what="a sleep that waits")
        self.wake()
        error = self.refused(sleep.join()[0], 409)
        self.assertIn("cancel", f"{error['type']} {error['code']} {error['message']}")
        self.stream.rest()
        self.assertEqual(self.stream.text(), self.expected)
        self.assertEqual(self.server.status()["state"], "running")

    def test_a_pause_keeps_it(self):
        self.ok(self.server.post("/pause?mode=keep"))
        self.ok(self.server.post("/resume"))
        self.stream.rest()
        self.assertEqual(self.stream.text(), self.expected)

    def test_a_pause_aborts_it_by_default(self):
        self.ok(self.server.post("/pause"))
        self.assertEqual(self.stream.rest().finish_reasons(), ["abort"])
        self.ok(self.server.post("/resume"))

    def test_the_cache_is_not_given_back_under_it(self):
        self.refused(self.server.post("/release_kv_cache_memory"), 409)
        self.assertEqual(self.stream.rest().text(), self.expected)

    def test_the_prefix_cache_is_not_reset_under_it(self):
        self.assertFalse(self.ok(self.server.post("/reset_prefix_cache"))["success"])
        self.assertEqual(self.stream.rest().text(), self.expected)

    def test_a_reset_that_takes_running_requests_along_changes_no_text(self):
        self.assertTrue(self.ok(self.server.post("/reset_prefix_cache?reset_running_requests=true"))["success"])
        self.assertEqual(self.stream.rest().text(), self.expected)

    def test_a_late_request_is_refused_while_the_gate_is_closed(self):
        sleep = Background(lambda: self.sleep(1, "wait"))
        wait_until(lambda: self.server.status()["state"] in ("pausing", "sleeping"), what="a closed gate")
        answer = self.server.post(COMPLETIONS, {"prompt": "x"}, timeout=30)
        self.refused(answer, 503)
        self.assertGreater(int(answer.headers["Retry-After"]), 0)
        self.stream.rest()
        sleep.join()


class Storms(LifecycleTest):
    """Many at once: every answer is right or refused, and in the end all is as it was."""

    CYCLES = 8

    def ask_until(self, stop, expected):
        seen = {200: 0, 503: 0, "abort": 0}
        prompts = itertools.cycle(expected)
        while not stop.is_set():
            prompt = next(prompts)
            answer = self.server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 60, "temperature": 0})
            if answer.status == 503:
                seen[503] += 1
                stop.wait(0.005)
                continue
            self.assertEqual(answer.status, 200, answer)
            choice = answer.json()["choices"][0]
            if choice["finish_reason"] == "abort":
                seen["abort"] += 1
                self.assertTrue(expected[prompt].startswith(choice["text"]), (expected[prompt], choice))
            else:
                seen[200] += 1
                self.assertEqual(choice["text"], expected[prompt])
        return seen

    def test_answers_are_right_while_the_engine_sleeps_and_wakes(self):
        prompts = ["Once upon a time", "x", "The quick brown fox jumps. " * 6, "1 2 3"]
        expected = {prompt: self.server.text(prompt, max_tokens=60) for prompt in prompts}
        for mode in ("abort", "wait", "keep"):
            with self.subTest(mode):
                stop = threading.Event()
                askers = Background(*[lambda: self.ask_until(stop, expected)] * 6)
                try:
                    for level in (1, 0, 2, 1) * (self.CYCLES // 4):
                        self.sleep(level, mode)
                        self.wake()
                        if level == 2:
                            self.ok(self.server.post("/reload_weights"))
                        self.server.text("between", max_tokens=20)
                finally:
                    stop.set()
                seen = askers.join()
                self.assertGreater(sum(one[200] for one in seen), 0)

    def test_control_calls_from_everywhere_end_in_a_defined_state(self):
        expected = self.server.text()
        calls = ["/sleep?level=1", "/wake_up", "/sleep?level=2&mode=wait", "/wake_up?tags=weights", "/pause",
                 "/resume", "/reload_weights", "/wake_up?tags=kv_cache", "/sleep?level=1&mode=keep",
                 "/release_kv_cache_memory", "/reset_prefix_cache", "/sleep?level=0"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda path: self.server.post(path), calls * 6))
        self.assertLessEqual({answer.status for answer in answers}, {200, 409}, answers)
        self.wake()
        self.ok(self.server.post("/reload_weights"))
        self.ok(self.server.post("/resume"))
        self.assertEqual(self.server.text(), expected)

    def test_every_request_that_meets_a_closing_gate_ends(self):
        body = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            asked = [pool.submit(self.server.post, COMPLETIONS, body) for _ in range(48)]
            self.sleep(1, "abort")
            answers = [one.result(30) for one in asked]
        for answer in answers:
            self.assertIn(answer.status, (200, 503), answer)
            if answer.status == 503:
                self.assertTrue(answer.headers["Retry-After"])


class LittleHostMemory(unittest.TestCase):
    def test_a_sleep_that_finds_no_host_memory_changes_nothing(self):
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            server = Server(make_model(pathlib.Path(folder) / "tiny.gguf"), "--host-memory-limit", 4096)
            self.addCleanup(server.kill)
            text, before = server.text(), server.status()
            stream = server.stream(COMPLETIONS, {**LONG, "max_tokens": 300})
            stream.next_text()
            answer = server.post("/sleep?level=1")
            self.assertEqual(answer.status, 507, answer)
            self.assertRegex(answer.json()["error"]["message"], r"\d")
            self.assertEqual(stream.rest().finish_reasons(), ["length"])
            after = server.status()
            self.assertEqual((after["state"], after["memory"]), ("running", before["memory"]))
            self.assertEqual(server.text(), text)
            self.assertEqual(server.post("/sleep?level=2").status, 200)
            self.assertEqual(server.post("/wake_up").status, 200)
            self.assertEqual(server.post("/reload_weights").status, 200)
            self.assertEqual(server.text(), text)


class NoSleepMode(unittest.TestCase):
    def test_without_sleep_mode_only_a_pause_is_allowed(self):
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            server = Server(make_model(pathlib.Path(folder) / "tiny.gguf"), "--no-enable-sleep-mode")
            self.addCleanup(server.kill)
            answer = server.post("/sleep")
            self.assertGreaterEqual(answer.status, 400)
            self.assertEqual(server.status()["state"], "running")
            self.assertEqual(server.post("/sleep?level=0").status, 200)
            self.assertEqual(server.post("/wake_up").status, 200)
            self.assertTrue(server.text())


if __name__ == "__main__":
    unittest.main()
