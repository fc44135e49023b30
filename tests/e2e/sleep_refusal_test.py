#!/usr/bin/env python3
"""A connector that does not follow the mapping is refused before anything is unmapped.

Needs DORMOUSE_LEGACY_MODULE: a shared library with the class LegacyConnector, which only addresses memory.
"""

import os
import sys
import unittest

from pd import Instance, TransferTest, start_failure, transfer_config

MODULE = os.environ.get("DORMOUSE_LEGACY_MODULE")
TEXT = "LegacyConnector does not support sleep mode"


class Legacy(TransferTest):
    def config(self):
        return transfer_config("LegacyConnector", module=MODULE)

    def test_with_sleep_mode_it_does_not_start(self):
        self.assertIn(TEXT, start_failure(self.model, self.config()))

    def test_without_it_serves_and_refuses_to_unmap(self):
        server = self.start(Instance(self.model, self.config(), "--no-enable-sleep-mode"))
        body = self.body()
        self.right(server.post("/v1/completions", body), body)
        before, blocks = server.status(), server.blocks()
        for path in ("/sleep?level=1", "/sleep?level=2", "/release_kv_cache_memory"):
            for _ in range(2):
                with self.subTest(path):
                    answer = server.post(path)
                    self.assertGreaterEqual(answer.status, 400, answer)
                    self.assertIn(TEXT, answer.json()["error"]["message"])
        after = server.status()
        for key in ("state", "generation_kv_cache", "generation_weights", "memory", "accepts_requests"):
            self.assertEqual(after[key], before[key], key)
        self.assertEqual(server.blocks(), blocks)
        self.right(server.post("/v1/completions", body), body)

    def test_a_pause_is_never_refused(self):
        server = self.start(Instance(self.model, self.config(), "--no-enable-sleep-mode"))
        self.assertEqual(server.post("/sleep?level=0").status, 200)
        self.assertEqual(server.post("/wake_up").status, 200)
        body = self.body()
        self.right(server.post("/v1/completions", body), body)

    def test_several_of_which_one_cannot_are_refused(self):
        children = [{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                     "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20}}, self.config()]
        self.assertIn("MultiConnector does not support sleep mode",
                      start_failure(self.model, transfer_config("MultiConnector", connectors=children)))


if __name__ == "__main__":
    if not MODULE:
        print("skipped: DORMOUSE_LEGACY_MODULE names no module")
        sys.exit(77)
    unittest.main()
