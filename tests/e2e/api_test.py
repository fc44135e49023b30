#!/usr/bin/env python3
"""What the OpenAI routes answer to good requests."""

import concurrent.futures
import math
import unittest

from harness import ServerTest

STORY = "Once upon a time"


class Api(ServerTest):
    # --- text
    def test_greedy_text_is_the_same_every_time(self):
        first = self.server.complete(max_tokens=48)
        self.assertEqual(self.server.complete(max_tokens=48)["choices"], first["choices"])
        self.assertTrue(first["choices"][0]["text"])

    def test_greedy_text_is_the_same_in_a_batch(self):
        prompts = [STORY, "x", "The quick brown fox " * 12, "1 2 3", STORY, "Zebra"]
        alone = [self.server.text(prompt, max_tokens=40) for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(lambda prompt: self.server.text(prompt, max_tokens=40), prompts))
        self.assertEqual(together, alone)

    def test_a_seed_reproduces_and_another_does_not(self):
        def drawn(seed):
            return self.server.text(max_tokens=40, temperature=1, seed=seed)
        self.assertEqual(drawn(7), drawn(7))
        self.assertNotEqual(drawn(7), drawn(8))

    def test_large_seeds_are_told_apart(self):
        def drawn(seed):
            return self.server.text(max_tokens=40, temperature=1, seed=seed)
        self.assertNotEqual(drawn(2**53), drawn(2**53 + 1))

    def test_without_a_seed_two_draws_differ(self):
        self.assertNotEqual(self.server.text(max_tokens=40, temperature=1),
                            self.server.text(max_tokens=40, temperature=1))

    def test_streamed_text_is_the_whole_text(self):
        for options in ({}, {"temperature": 1, "seed": 3}, {"n": 2, "temperature": 1, "seed": 3}):
            with self.subTest(**options):
                body = {"prompt": STORY, "max_tokens": 40, "temperature": 0, **options}
                whole = self.ok(self.server.post("/v1/completions", body))
                stream = self.server.stream("/v1/completions", body).rest()
                self.assertEqual(stream.status, 200)
                self.assertIn("text/event-stream", stream.headers["Content-Type"])
                self.assertTrue(stream.done)
                for choice in whole["choices"]:
                    self.assertEqual(stream.text(choice["index"]), choice["text"])
                    self.assertEqual(stream.finish_reasons(choice["index"]), [choice["finish_reason"]])

    def test_streamed_chat_is_the_whole_chat(self):
        body = {"messages": [{"role": "system", "content": "Be brief."},
                             {"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0}
        whole = self.ok(self.server.post("/v1/chat/completions", body))
        stream = self.server.stream("/v1/chat/completions", body).rest()
        self.assertTrue(stream.done)
        self.assertEqual(stream.text(), whole["choices"][0]["message"]["content"])
        self.assertEqual(stream.finish_reasons(), [whole["choices"][0]["finish_reason"]])
        self.assertEqual(stream.events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual({event["object"] for event in stream.events}, {"chat.completion.chunk"})
        self.assertEqual(len({event["id"] for event in stream.events}), 1)

    # --- shapes
    def test_a_completion_has_the_shape_that_clients_read(self):
        answer = self.server.complete(max_tokens=5)
        self.assertEqual(answer["object"], "text_completion")
        self.assertTrue(answer["id"])
        self.assertIsInstance(answer["created"], int)
        self.assertEqual(answer["model"], "tiny")
        self.assertEqual(answer["choices"][0]["index"], 0)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 5)

    def test_a_chat_has_the_shape_that_clients_read(self):
        answer = self.server.chat(max_tokens=5)
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(answer["choices"][0]["message"]["role"], "assistant")
        self.assertIsInstance(answer["choices"][0]["message"]["content"], str)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 5)

    def test_max_completion_tokens_bounds_a_chat(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0,
                "max_completion_tokens": 3}
        self.assertEqual(self.ok(self.server.post("/v1/chat/completions", body))["usage"]
                         ["completion_tokens"], 3)

    def test_chat_content_may_come_in_parts(self):
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        answer = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0})
        self.assertTrue(self.ok(answer)["choices"][0]["message"]["content"])

    # --- usage
    def test_usage_adds_up(self):
        tokens = self.ok(self.server.post("/tokenize", {"model": "tiny", "prompt": STORY}))["count"]
        for options, sequences in (({}, 1), ({"n": 3}, 3), ({"prompt": [STORY, STORY]}, 2)):
            with self.subTest(**options):
                usage = self.server.complete(max_tokens=6, ignore_eos=True, **options)["usage"]
                prompts = len(options["prompt"]) if "prompt" in options else 1
                self.assertEqual(usage["prompt_tokens"], tokens * prompts)
                self.assertEqual(usage["completion_tokens"], 6 * sequences)
                self.assertEqual(usage["total_tokens"],
                                 usage["prompt_tokens"] + usage["completion_tokens"])

    def test_usage_says_how_much_came_from_the_prefix_cache(self):
        prompt = "A prompt that nobody else asks, long enough for several blocks. " * 4
        def cached():
            return (self.server.complete(prompt)["usage"].get("prompt_tokens_details") or {}).get(
                "cached_tokens") or 0
        self.assertEqual(cached(), 0)
        self.assertGreaterEqual(cached(), 64)

    def test_a_stream_tells_usage_when_asked(self):
        for path, ask in (("/v1/completions", {"prompt": STORY}),
                          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})):
            with self.subTest(path):
                body = {**ask, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
                whole = self.ok(self.server.post(path, body))
                plain = self.server.stream(path, body).rest()
                self.assertFalse([event for event in plain.events if event.get("usage")])
                told = self.server.stream(path, {**body, "stream_options": {"include_usage": True}}).rest()
                self.assertEqual(told.events[-1]["choices"], [])
                for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
                    self.assertEqual(told.events[-1]["usage"][field], whole["usage"][field])
                self.assertFalse([event for event in told.events[:-1] if event.get("usage")])

    def test_a_stream_tells_usage_continuously_when_asked(self):
        body = {"prompt": STORY, "max_tokens": 6, "temperature": 0, "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        stream = self.server.stream("/v1/completions", body).rest()
        counts = [event["usage"]["completion_tokens"] for event in stream.events]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 6)

    # --- stop
    def test_a_stop_string_ends_the_text_and_is_not_in_it(self):
        text = self.server.text(max_tokens=60, ignore_eos=True)
        for start, length in ((5, 1), (8, 3), (17, 6), (25, 11)):
            stop = text[start:start + length]
            expected = text[:text.index(stop)]
            for stops in (stop, [stop], ["\x00never", stop]):
                with self.subTest(stop=stops):
                    body = {"prompt": STORY, "max_tokens": 60, "temperature": 0, "ignore_eos": True,
                            "stop": stops}
                    choice = self.ok(self.server.post("/v1/completions", body))["choices"][0]
                    self.assertEqual((choice["text"], choice["finish_reason"]), (expected, "stop"))
                    stream = self.server.stream("/v1/completions", body)
                    shown = ""
                    for event in stream:
                        for part in event["choices"]:
                            shown += part["text"]
                            self.assertTrue(expected.startswith(shown), (shown, expected))
                    self.assertEqual(shown, expected)
                    self.assertEqual(stream.rest().finish_reasons(), ["stop"])

    def test_the_earliest_of_several_stop_strings_wins(self):
        text = self.server.text(max_tokens=60, ignore_eos=True)
        late, early = text[30:34], text[12:17]
        expected = text[:min(text.index(late), text.index(early))]
        self.assertEqual(self.server.text(max_tokens=60, ignore_eos=True, stop=[late, early]), expected)

    def test_text_held_back_for_a_stop_string_comes_in_the_end(self):
        text = self.server.text(max_tokens=30, ignore_eos=True)
        stop = text[-4:] + "\x01 and what never comes"
        self.assertEqual(self.server.text(max_tokens=30, ignore_eos=True, stop=stop), text)
        body = {"prompt": STORY, "max_tokens": 30, "temperature": 0, "ignore_eos": True, "stop": stop}
        self.assertEqual(self.server.stream("/v1/completions", body).rest().text(), text)

    def test_a_stop_string_in_the_prompt_does_not_count(self):
        self.assertTrue(self.server.text("STOP here STOP", stop="STOP here", ignore_eos=True))

    # --- logprobs, echo
    def test_completion_logprobs_are_finite_and_fit_the_text(self):
        choice = self.server.complete(max_tokens=12, logprobs=3, ignore_eos=True)["choices"][0]
        logprobs = choice["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), 12)
        self.assertEqual("".join(logprobs["tokens"]), choice["text"])
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"],
                                     logprobs["top_logprobs"], strict=True):
            self.assertTrue(math.isfinite(value) and value <= 0, value)
            self.assertGreaterEqual(len(top), 3)
            self.assertAlmostEqual(top[token], value, places=4)
            self.assertAlmostEqual(max(top.values()), value, places=4)
        offsets = logprobs["text_offset"]
        for offset, token in zip(offsets, logprobs["tokens"], strict=True):
            self.assertEqual(choice["text"][offset - offsets[0]:][:len(token)], token)

    def test_chat_logprobs_are_finite_and_fit_the_text(self):
        choice = self.server.chat(max_tokens=8, logprobs=True, top_logprobs=2, ignore_eos=True)["choices"][0]
        content = choice["logprobs"]["content"]
        self.assertEqual(len(content), 8)
        self.assertEqual(b"".join(bytes(entry["bytes"]) for entry in content).decode("utf-8", "replace"),
                         choice["message"]["content"])
        for entry in content:
            self.assertTrue(math.isfinite(entry["logprob"]) and entry["logprob"] <= 0)
            self.assertEqual(len(entry["top_logprobs"]), 2)
            self.assertEqual(entry["top_logprobs"][0]["token"], entry["token"])

    def test_streamed_logprobs_are_the_whole_ones(self):
        body = {"prompt": STORY, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        whole = self.ok(self.server.post("/v1/completions", body))["choices"][0]["logprobs"]
        stream = self.server.stream("/v1/completions", body).rest()
        streamed = [value for event in stream.events for choice in event["choices"]
                    if choice.get("logprobs") for value in choice["logprobs"]["token_logprobs"]]
        self.assertEqual(streamed, whole["token_logprobs"])

    def test_echo_repeats_the_prompt(self):
        text = self.server.text(max_tokens=6)
        self.assertEqual(self.server.text(max_tokens=6, echo=True), STORY + text)
        body = {"prompt": STORY, "max_tokens": 6, "temperature": 0, "echo": True}
        self.assertEqual(self.server.stream("/v1/completions", body).rest().text(), STORY + text)

    def test_echo_alone_generates_nothing(self):
        answer = self.server.complete(max_tokens=0, echo=True)
        self.assertEqual(answer["choices"][0]["text"], STORY)
        self.assertEqual(answer["usage"]["completion_tokens"], 0)

    # --- several
    def test_n_gives_so_many_choices(self):
        choices = self.server.complete(n=3)["choices"]
        self.assertEqual([choice["index"] for choice in choices], [0, 1, 2])
        self.assertEqual(len({choice["text"] for choice in choices}), 1)
        drawn = self.server.complete(n=3, temperature=1, seed=5, max_tokens=40)["choices"]
        self.assertEqual(len({choice["text"] for choice in drawn}), 3)

    def test_prompts_may_be_a_list_and_may_be_token_ids(self):
        prompts = [STORY, "x"]
        alone = [self.server.text(prompt) for prompt in prompts]
        choices = self.server.complete(prompts)["choices"]
        self.assertEqual([choice["text"] for choice in choices], alone)
        self.assertEqual([choice["index"] for choice in choices], [0, 1])
        ids = [self.ok(self.server.post("/tokenize", {"prompt": prompt}))["tokens"] for prompt in prompts]
        self.assertEqual(self.server.text(ids[0]), alone[0])
        self.assertEqual([choice["text"] for choice in self.server.complete(ids)["choices"]], alone)

    def test_an_unknown_key_is_ignored_and_null_is_absence(self):
        nulls = dict.fromkeys(("n", "stop", "seed", "logprobs", "echo", "stream", "stream_options", "user",
                               "logit_bias", "suffix", "top_p", "kv_transfer_params"))
        self.assertEqual(self.server.text(unknown_key={"a": [1]}, **nulls), self.server.text())

    def test_logit_bias_forbids_a_token(self):
        tokens = self.ok(self.server.post("/tokenize", {"prompt": STORY}))["tokens"]
        first = self.server.complete(max_tokens=1, logprobs=1)["choices"][0]["text"]
        (forced,) = self.ok(self.server.post("/tokenize", {
            "prompt": "Q", "add_special_tokens": False}))["tokens"]
        self.assertNotIn(forced, tokens)
        self.assertEqual(self.server.text(max_tokens=4, logit_bias={str(forced): 100}), "QQQQ")
        self.assertNotEqual(first, "Q")

    # --- tokens
    def test_text_survives_tokenize_and_detokenize(self):
        for text in (STORY, "naïve café, 日本語, 🙂👩‍👩‍👧", " leading\n\n\ttabs  ", "a" * 300):
            with self.subTest(text[:20]):
                made = self.ok(self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False}))
                self.assertEqual(made["count"], len(made["tokens"]))
                self.assertEqual(made["max_model_len"], 2048)
                back = self.ok(self.server.post("/detokenize", {"tokens": made["tokens"]}))
                self.assertEqual(back["prompt"], text)

    def test_tokenize_takes_messages(self):
        made = self.ok(self.server.post("/tokenize", {"messages": [{"role": "user", "content": "Hello"}]}))
        self.assertEqual(made["count"], self.server.chat("Hello")["usage"]["prompt_tokens"])

    # --- what is there
    def test_models_lists_the_one_model(self):
        answer = self.ok(self.server.get("/v1/models"))
        self.assertEqual(answer["object"], "list")
        (model,) = answer["data"]
        self.assertEqual((model["id"], model["object"], model["max_model_len"]), ("tiny", "model", 2048))

    def test_a_wrong_model_name_is_not_found(self):
        for path, ask in (("/v1/completions", {"prompt": "x"}),
                          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            self.refused(self.server.post(path, {"model": "another", **ask}), 404)

    def test_health_version_and_status_answer(self):
        self.assertEqual(self.server.get("/health").status, 200)
        self.assertEqual(self.server.get("/health/ready").status, 200)
        self.assertTrue(self.ok(self.server.get("/version"))["version"])
        status = self.server.status()
        self.assertEqual(status["state"], "running")
        self.assertGreater(status["blocks_total"], 0)
        self.assertGreater(status["memory"]["weights"]["mapped"], 0)
        self.assertGreater(status["memory"]["kv_cache"]["mapped"], 0)

    def test_a_trailing_slash_is_the_same_route(self):
        for path in ("/health/", "/v1/models/", "/is_sleeping/"):
            self.assertEqual(self.server.get(path).status, 200, path)
        self.assertEqual(self.server.post("/reset_prefix_cache/").status, 200)

    def test_head_and_options_are_answered(self):
        self.assertIn(self.server.request("HEAD", "/health").status, (200, 405))
        self.assertLess(self.server.request("OPTIONS", "/v1/models").status, 500)

    def test_concurrent_requests_beyond_the_limit_all_end(self):
        body = {"prompt": STORY, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda _: self.server.post("/v1/completions", body), range(60)))
        self.assertEqual({answer.status for answer in answers}, {200})
        self.assertEqual(len({answer.json()["choices"][0]["text"] for answer in answers}), 1)


class Metrics(ServerTest):
    NAMES = {
        "counter": ("prompt_tokens_total", "generation_tokens_total", "request_success_total",
                    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"),
        "gauge": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                  "engine_sleep_state", "cache_config_info"),
        "histogram": ("e2e_request_latency_seconds", "time_to_first_token_seconds",
                      "inter_token_latency_seconds", "request_prompt_tokens",
                      "request_generation_tokens", "request_queue_time_seconds",
                      "request_prefill_time_seconds", "request_decode_time_seconds",
                      "request_max_num_generation_tokens", "iteration_tokens_total"),
    }

    def test_metrics_have_the_names_and_types_that_dashboards_read(self):
        self.server.complete()
        answer = self.server.get("/metrics")
        self.assertIn("text/plain", answer.headers["Content-Type"])
        types = [line.split()[2:4] for line in answer.text.splitlines() if line.startswith("# TYPE")]
        self.assertEqual(len(types), len({name for name, _ in types}), "a name has two TYPE lines")
        types = dict(types)
        for kind, names in self.NAMES.items():
            for name in names:
                with self.subTest(name):
                    self.assertIn(f"vllm:{name}", types)
                    self.assertEqual(types[f"vllm:{name}"], kind)

    def test_counters_count_what_usage_says(self):
        def total(name):
            return sum(self.server.metrics()[f"vllm:{name}"].values())
        before = [total(name) for name in ("prompt_tokens_total", "generation_tokens_total",
                                           "request_success_total")]
        usage = self.server.complete()["usage"]
        after = [total(name) for name in ("prompt_tokens_total", "generation_tokens_total",
                                          "request_success_total")]
        self.assertEqual([b - a for a, b in zip(before, after)],
                         [usage["prompt_tokens"], usage["completion_tokens"], 1])

    def test_histograms_are_cumulative(self):
        self.server.complete()
        metrics = self.server.metrics()
        for name in self.NAMES["histogram"]:
            with self.subTest(name):
                buckets = list(metrics[f"vllm:{name}_bucket"].values())
                self.assertEqual(buckets, sorted(buckets))
                self.assertIn('le="+Inf"', list(metrics[f"vllm:{name}_bucket"])[-1])
                self.assertEqual(buckets[-1], sum(metrics[f"vllm:{name}_count"].values()))
                self.assertGreater(buckets[-1], 0)


class Keys(ServerTest):
    API_KEY = "a-secret"
    FLAGS = ("--api-key", "a-secret")
    OPEN = ("/health", "/ping", "/version")
    GUARDED = (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"),
               ("GET", "/status"), ("GET", "/metrics"), ("POST", "/sleep"), ("POST", "/wake_up"),
               ("GET", "/is_sleeping"), ("POST", "/pause"), ("POST", "/resume"), ("GET", "/is_paused"),
               ("POST", "/release_kv_cache_memory"), ("POST", "/reset_prefix_cache"),
               ("POST", "/reload_weights"), ("POST", "/tokenize"), ("POST", "/detokenize"))

    def test_every_route_but_the_probes_wants_the_key(self):
        for method, path in self.GUARDED:
            for header in ({"Authorization": ""}, {"Authorization": "Bearer another"},
                           {"Authorization": "Bearer a-secret2"}, {"Authorization": "Bearer a-secre"},
                           {"Authorization": "Basic a-secret"}):
                with self.subTest(path=path, **header):
                    answer = self.server.request(method, path, {} if method == "POST" else None,
                                                 headers=header)
                    self.assertEqual(answer.status, 401, answer)
        self.assertFalse(self.server.get("/is_sleeping").json()["is_sleeping"])

    def test_the_probes_want_none(self):
        for path in ("/health", "/version"):
            self.assertEqual(self.server.get(path, headers={"Authorization": ""}).status, 200, path)

    def test_the_key_opens(self):
        self.assertTrue(self.server.text())

    def test_no_spelling_of_a_path_gets_around_the_key(self):
        for path in ("//v1/models", "/v1//models", "/health/../v1/models", "/%76%31/models", "/v1%2fmodels",
                     "/V1/models", "/v1/models/.", "/v1/models%00", "/health?/v1/models", "/v1/models;x",
                     "http://127.0.0.1/v1/models"):
            with self.subTest(path):
                reply = self.server.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                self.assertNotIn(b"max_model_len", reply)


if __name__ == "__main__":
    unittest.main()
