#!/usr/bin/env python3
"""Bad requests get the answer of their class, and never more than that: the server and its other
requests go on as before."""

import json
import unittest

from harness import ServerTest, Background

STORY = "Once upon a time"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ANY = (200, 400)  # a matter of taste: accepted or refused, but never a failure of the server

# What a number may be that no field expects, as it stands in the request.
ODD = ("-1", "2147483648", "9007199254740993", "1e308", "null", '"many"', "NaN", "Infinity", "1e999",
       "true", "[]", "{}", "0.5")
# For each field the answers to those. Other fields: null is absence, and everything odd is refused.
FIELDS = {
    COMPLETIONS: {
        "max_tokens": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "min_tokens": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "n": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "logprobs": (400, 400, 400, 400, 200, 400, 400, 400, 400, ANY, 400, 400, 400),
        "temperature": (400, ANY, ANY, 400, 200, 400, 400, 400, 400, 400, 400, 400, 200),
        "top_p": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 200),
        "top_k": (200, ANY, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "min_p": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 200),
        "seed": (ANY, 200, 200, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "presence_penalty": (200, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 200),
        "frequency_penalty": (200, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 200),
        "repetition_penalty": (400, ANY, ANY, 400, 200, 400, 400, 400, 400, 400, 400, 400, 200),
        "priority": (200, ANY, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
    },
    CHAT: {
        "max_tokens": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "max_completion_tokens": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "n": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
        "top_logprobs": (400, 400, 400, 400, 200, 400, 400, 400, 400, 400, 400, 400, 400),
    },
}
# Numbers inside lists and maps: token ids that the model does not have, and biases out of bounds.
NESTED = {
    "prompt": '"prompt": [1, {}]',
    "stop_token_ids": '"stop_token_ids": [{}]',
    "logit_bias": '"logit_bias": {{"5": {}}}',
}
NOT_A_NUMBER = ("1e308", '"many"', "NaN", "Infinity", "1e999", "[]", "{}")
NOT_A_TOKEN = ("-1", "2147483648", "9007199254740993", "null", "0.5", "true", *NOT_A_NUMBER)


class BadInput(ServerTest):
    MODEL = {"context": 512}

    def setUp(self):
        super().setUp()
        self.addCleanup(self.still_the_same, self.server.text())

    def still_the_same(self, text):
        self.assertEqual(self.server.text(), text)

    def body(self, path, field, value):
        """A request with a value that Python's encoder would not write."""
        ask = ({"prompt": STORY} if path == COMPLETIONS
               else {"messages": [{"role": "user", "content": "Hi"}]})
        if not field.startswith("max_"):
            ask["max_tokens"] = 4
        if field == "top_logprobs":
            ask["logprobs"] = True
        return json.dumps(ask)[:-1] + f', "{field}": {value}' + "}"

    # --- numbers
    def test_every_number_has_its_bounds(self):
        for path, fields in FIELDS.items():
            for field, answers in fields.items():
                for value, expected in zip(ODD, answers, strict=True):
                    with self.subTest(path=path, field=field, value=value):
                        answer = self.server.post(path, self.body(path, field, value))
                        if expected == 200 or (expected == ANY and answer.status == 200):
                            self.ok(answer)
                        elif value in ("NaN", "Infinity", "1e999"):
                            self.refused(answer, 400)
                        else:
                            error = self.refused(answer, 400)
                            self.assertIn(field, f"{error['param']} {error['message']}")

    def test_numbers_in_lists_and_maps_have_theirs(self):
        for field, form in NESTED.items():
            for value in NOT_A_NUMBER if field == "logit_bias" else NOT_A_TOKEN:
                with self.subTest(field=field, value=value):
                    extra = form.format(value)
                    body = "{" + ("" if field == "prompt" else '"prompt": "x", ') + extra + "}"
                    self.refused(self.server.post(COMPLETIONS, body), 400)

    def test_logit_bias_of_no_token_is_refused(self):
        for token in ("-1", "100000", "2147483648", "x", "1.5", ""):
            with self.subTest(token):
                self.refused(self.server.post(COMPLETIONS, {"prompt": "x", "logit_bias": {token: 1}}), 400)

    def test_min_tokens_beyond_max_tokens_is_refused(self):
        self.refused(self.server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "min_tokens": 5}), 400)
        self.refused(self.server.post(COMPLETIONS, {"prompt": "x", "max_tokens": None,
                                                    "min_tokens": 100000}), 400)

    def test_top_logprobs_without_logprobs_is_refused(self):
        self.refused(self.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}],
                                             "top_logprobs": 2}), 400)

    def test_stream_options_without_a_stream_is_refused(self):
        self.refused(self.server.post(COMPLETIONS, {"prompt": "x", "stream_options":
                                                    {"include_usage": True}}), 400)

    def test_detokenize_takes_tokens_only(self):
        for tokens in ([-1], [2**31], [2**53 + 1], [10**300], ["x"], [0.5], [None], "x", None, 5, {"a": 1}):
            with self.subTest(tokens=tokens):
                self.refused(self.server.post("/detokenize", {"tokens": tokens}), 400)
        self.refused(self.server.post("/detokenize", '{"tokens": [NaN]}'), 400)
        self.refused(self.server.post("/detokenize", {}), 400)

    # --- prompts
    def test_a_prompt_longer_than_the_context_is_refused(self):
        for path, ask in ((COMPLETIONS, {"prompt": "word " * 3000}), (COMPLETIONS, {"prompt": [5] * 513}),
                          (CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]})):
            with self.subTest(path):
                error = self.refused(self.server.post(path, {**ask, "max_tokens": 1}), 400)
                self.assertIn("512", error["message"])

    def test_a_prompt_that_leaves_no_room_is_refused(self):
        self.refused(self.server.post(COMPLETIONS, {"prompt": [5] * 512, "max_tokens": 1}), 400)
        answer = self.ok(self.server.post(COMPLETIONS, {"prompt": [5] * 511, "max_tokens": 1}))
        self.assertEqual(answer["usage"]["prompt_tokens"], 511)

    def test_more_tokens_than_the_context_has_left_are_refused(self):
        self.refused(self.server.post(COMPLETIONS, {"prompt": [5] * 500, "max_tokens": 13}), 400)
        self.ok(self.server.post(COMPLETIONS, {"prompt": [5] * 500, "max_tokens": 12}))

    def test_an_empty_prompt_is_refused(self):
        for prompt in ([], [[]], [5, [6]], ["x", []], [None], None, 5, {}, True):
            with self.subTest(prompt=prompt):
                self.refused(self.server.post(COMPLETIONS, {"prompt": prompt}), 400)
        self.refused(self.server.post(COMPLETIONS, {}), 400)

    def test_an_empty_string_is_refused_or_has_a_beginning(self):
        answer = self.server.post(COMPLETIONS, {"prompt": "", "max_tokens": 2})
        if answer.status == 200:
            self.assertGreaterEqual(answer.json()["usage"]["prompt_tokens"], 1)
        else:
            self.refused(answer, 400)

    def test_messages_must_be_messages(self):
        for messages in ([], None, "x", 5, {}, ["x"], [5], [None], [{}],
                         [{"content": "x"}], [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}],
                         [{"role": "user", "content": [{"type": "text"}]}],
                         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]):
            with self.subTest(messages=messages):
                self.refused(self.server.post(CHAT, {"messages": messages}), 400)
        self.refused(self.server.post(CHAT, {}), 400)

    def test_stop_must_be_short_strings(self):
        for stop in (5, [5], {}, [None], [[]], [""], "x" * 100_000, ["x"] * 10_000):
            with self.subTest(stop=str(stop)[:20]):
                self.refused(self.server.post(COMPLETIONS, {"prompt": "x", "stop": stop}), 400)

    def test_flags_must_be_flags(self):
        for field in ("stream", "echo", "ignore_eos"):
            for value in (5, "x", [], {}):
                with self.subTest(field=field, value=value):
                    self.refused(self.server.post(COMPLETIONS, {"prompt": "x", field: value}), 400)

    def test_odd_kv_transfer_params_kill_nobody(self):
        for value in (5, "x", [], {"do_remote_prefill": True}, {"remote_block_ids": -1},
                      {"do_remote_prefill": "x", "remote_host": "127.0.0.1", "remote_port": 2**53}):
            with self.subTest(value=value):
                answer = self.server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2,
                                                        "kv_transfer_params": value})
                self.assertLess(answer.status, 500, answer)

    # --- JSON
    def test_what_is_not_json_is_refused(self):
        for body in ("", "{", "nonsense", '{"prompt": "x"', '{"prompt": "x"} trailing', "[1, 2]", '"text"',
                     "5", "null", "{'prompt': 'x'}", '{"prompt": "x",}', '{"prompt": "\\ud800"}',
                     '{"prompt": "x" /* why */}', "\x00", "{\"prompt\": \"a\nb\"}"):
            with self.subTest(body):
                self.refused(self.server.post(COMPLETIONS, body), 400)

    def test_duplicate_keys_are_refused(self):
        self.refused(self.server.post(COMPLETIONS, '{"prompt": "x", "prompt": "y"}'), 400)
        self.refused(self.server.post(COMPLETIONS, '{"prompt": "x", "logit_bias": {"5": 1, "5": 2}}'), 400)
        self.refused(self.server.post("/sleep", '{"level": 1, "level": 2}'), 400)
        self.assertFalse(self.server.get("/is_sleeping").json()["is_sleeping"])

    def test_deep_nesting_is_refused(self):
        for depth in (200, 100_000):
            for opened, closed in (("[", "]"), ('{"a":', "}")):
                with self.subTest(depth=depth, opened=opened):
                    deep = opened * depth + "1" + closed * depth
                    self.refused(self.server.post(COMPLETIONS, '{"prompt": "x", "user": ' + deep + "}"), 400)
                    self.refused(self.server.post(COMPLETIONS, opened * depth), 400)

    def test_invalid_utf8_is_refused(self):
        for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82"):
            with self.subTest(bad=bad):
                self.refused(self.server.post(COMPLETIONS, b'{"prompt": "' + bad + b'"}'), 400)
                self.refused(self.server.post("/tokenize", b'{"prompt": "' + bad + b'"}'), 400)

    def test_text_with_nul_and_odd_characters_is_text(self):
        for text in ("a\x00b", "\u202e\ufeff", "\U0010ffff", "<|im_end|>", "\\n"):
            with self.subTest(text=text):
                self.ok(self.server.post(COMPLETIONS, {"prompt": text, "max_tokens": 2}))

    def test_a_wrong_content_type_is_refused_or_read(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            with self.subTest(kind):
                answer = self.server.post(COMPLETIONS, "prompt=x", headers={"Content-Type": kind})
                self.refused(answer, (400, 415))

    # --- routes
    def test_an_unknown_route_is_not_found(self):
        for method, path in (("GET", "/nothing"), ("POST", "/v1/nothing"), ("GET", "/v1"), ("GET", "/../x"),
                             ("POST", "/v1/completions/more"), ("GET", "/%00"), ("DELETE", "/nothing"),
                             ("GET", "/v1/completions%2f..")):
            with self.subTest(path):
                self.refused(self.server.request(method, path), 404)

    def test_a_wrong_method_is_told_the_right_one(self):
        for path, right in ((COMPLETIONS, "POST"), (CHAT, "POST"), ("/sleep", "POST"), ("/wake_up", "POST"),
                            ("/pause", "POST"), ("/resume", "POST"), ("/reload_weights", "POST"),
                            ("/release_kv_cache_memory", "POST"), ("/tokenize", "POST"),
                            ("/detokenize", "POST"), ("/reset_prefix_cache", "POST"), ("/status", "GET"),
                            ("/v1/models", "GET"), ("/is_sleeping", "GET"), ("/is_paused", "GET"),
                            ("/metrics", "GET"), ("/version", "GET")):
            with self.subTest(path):
                wrong = "GET" if right == "POST" else "POST"
                answer = self.server.request(wrong, path)
                self.refused(answer, 405)
                self.assertIn(right, answer.headers["Allow"])
                self.refused(self.server.request("DELETE", path), 405)
        self.assertFalse(self.server.get("/is_sleeping").json()["is_sleeping"])

    # --- the others
    def test_a_neighbour_does_not_notice(self):
        expected = self.server.text(max_tokens=300, ignore_eos=True)
        neighbour = Background(lambda: self.server.text(max_tokens=300, ignore_eos=True))
        for body in ('{"prompt": [999999]}', '{"prompt": "x", "n": 1000000}', '{"prompt": "x", "top_p": -1}',
                     '{"prompt": "x", "logit_bias": {"999999": 1}}', "[" * 5000,
                     json.dumps({"prompt": "word " * 50000})):
            self.assertEqual(self.server.post(COMPLETIONS, body).status, 400)
        self.assertEqual(neighbour.join(), [expected])


if __name__ == "__main__":
    unittest.main()
