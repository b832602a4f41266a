#!/usr/bin/env python3
"""/v1/messages against the real daemon and the default model: Anthropic's SDK, the order of events, bad input."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SMOLLM2, Daemon  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from relay import Relay  # noqa: E402

import anthropic  # noqa: E402

PATH = "/v1/messages"
ASK = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--api-key", "sk-test", model=SMOLLM2)
        cls.r = Relay(cls.d.url)
        cls.c = anthropic.Anthropic(base_url=cls.r.url, api_key="sk-test", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.r.__exit__()
        cls.d.__exit__(None, None, None)
        assert not cls.r.bad, cls.r.bad[:5]
        assert cls.r.seen

    def create(self, **kw):
        more = {"temperature": 0, **kw.pop("extra_body", {})}
        return self.c.messages.create(**{"model": "m", "messages": ASK, "max_tokens": 30, **kw}, extra_body=more)

    def ask(self, body, path=PATH):
        s, _, b = self.d.request("POST", path, {"model": "m", "messages": ASK, "max_tokens": 5, **body},
                                 headers={"x-api-key": "sk-test", "anthropic-version": "2023-06-01"})
        return s, b

    def events(self, **kw):
        s, b = self.ask({"stream": True, "temperature": 0, **kw})
        self.assertEqual(s, 200, b)
        out = []
        for frame in b.decode().split("\n\n"):
            if not frame or frame.startswith(":"):
                continue
            first, data = frame.split("\n")
            v = json.loads(data.removeprefix("data: "))
            self.assertEqual(first, f"event: {v['type']}")
            out.append(v)
        return out

    def test_create(self):
        r = self.create()
        self.assertEqual([(b.type, b.text) for b in r.content], [("text", PARIS)])
        self.assertEqual((r.role, r.stop_reason, r.stop_sequence), ("assistant", "end_turn", None))
        n = self.c.messages.count_tokens(model="m", messages=ASK).input_tokens
        self.assertEqual(r.usage.input_tokens + r.usage.cache_read_input_tokens, n)

    def test_same_as_chat(self):
        r = self.create(system=[{"type": "text", "text": "Speak as a pirate."}], extra_body={"seed": 5, "temperature": 1})
        s, v = self.d.post("/v1/chat/completions", {"model": "m", "seed": 5, "max_tokens": 30, "messages": [
            {"role": "system", "content": "Speak as a pirate."}, *ASK]}, headers={"Authorization": "Bearer sk-test"})
        self.assertEqual(s, 200, v)
        self.assertEqual(r.content[0].text, v["choices"][0]["message"]["content"])

    def test_stream(self):
        with self.c.messages.stream(model="m", messages=ASK, max_tokens=30, extra_body={"temperature": 0}) as s:
            text = "".join(s.text_stream)
            final = s.get_final_message()
        self.assertEqual(text, PARIS)
        self.assertEqual(final.content[0].text, PARIS)
        self.assertEqual(final.stop_reason, "end_turn")
        self.assertGreater(final.usage.output_tokens, 4)

    def test_stream_with_tools(self):
        with self.c.messages.stream(model="m", messages=ASK, max_tokens=12, tools=[TOOL], extra_body={"temperature": 0}) as s:
            streamed = s.get_final_message()
        whole = self.create(tools=[TOOL], max_tokens=12)
        self.assertEqual([b.model_dump() for b in streamed.content], [b.model_dump() for b in whole.content])

    def test_tool_use(self):
        kw = {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 60}
        whole = self.create(**kw)
        self.assertEqual((whole.stop_reason, [b.type for b in whole.content]), ("tool_use", ["tool_use"]))
        with self.c.messages.stream(model="m", messages=ASK, extra_body={"temperature": 0}, **kw) as s:
            parts = "".join(e.delta.partial_json for e in s if e.type == "content_block_delta")
            streamed = s.get_final_message()
        self.assertEqual(json.loads(parts), whole.content[0].input)
        self.assertEqual(streamed.content[0].input, whole.content[0].input)
        named = self.create(**{**kw, "tool_choice": {"type": "tool", "name": "get_weather"}})
        self.assertEqual(named.content[0].input, whole.content[0].input)
        after = self.create(messages=[*ASK, {"role": "assistant", "content": [b.model_dump() for b in whole.content]},
                                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": whole.content[0].id, "content": "18"}]}],
                            tools=[TOOL], tool_choice={"type": "none"})
        self.assertEqual([b.type for b in after.content], ["text"])

    def test_events(self):
        for kw in ({}, {"stop_sequences": ["France"], "max_tokens": 30}, {"max_tokens": 1}):
            ev = self.events(**kw)
            kinds = [e["type"] for e in ev]
            self.assertEqual(kinds[:3], ["message_start", "ping", "content_block_start"])
            self.assertEqual(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
            self.assertEqual(set(kinds[3:-3]), {"content_block_delta"})
            self.assertEqual(ev[0]["message"]["content"], [])
            text = "".join(e["delta"]["text"] for e in ev[3:-3])
            s, b = self.ask({"temperature": 0, **kw})
            whole = json.loads(b)
            self.assertEqual(text, whole["content"][0]["text"])
            self.assertEqual({k: whole[k] for k in ("stop_reason", "stop_sequence")}, ev[-2]["delta"])
            self.assertEqual(whole["usage"]["output_tokens"], ev[-2]["usage"]["output_tokens"])

    def test_stop_sequence(self):
        r = self.create(stop_sequences=["Paris", "France"])
        self.assertEqual((r.content[0].text, r.stop_reason, r.stop_sequence), ("The capital of ", "stop_sequence", "France"))
        self.assertEqual(self.create(max_tokens=2).stop_reason, "max_tokens")

    def test_prefill(self):
        r = self.create(messages=[*ASK, {"role": "assistant", "content": "The capital of"}])
        self.assertEqual(r.content[0].text, " France is Paris.")

    def test_history(self):
        r = self.create(messages=[*ASK,
                                  {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                                                    {"type": "text", "text": "I look."},
                                                                    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}]},
                                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                                                               {"type": "text", "text": "And?"}]}], tools=[TOOL])
        self.assertTrue(r.content)

    def test_bad_input(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
        for kw, names in (
                ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": None}, "messages"),
                ({"messages": []}, "messages"), ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
                ({"messages": [{"role": "user"}]}, "messages[0].content"),
                ({"messages": [*ASK, {"role": "user", "content": [image]}]}, "messages[1].content[0].type"),
                ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
                ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]}, "messages[0].content[0].name"),
                ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
                ({"system": 3}, "system"), ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences"),
                ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"), ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
                ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"), ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
                ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
                ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
                ({"thinking": {"type": "x"}}, "thinking.type"), ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
                ({"temperature": 3}, "temperature"), ({"container": "x"}, "container"), ({"top_k": "x"}, "top_k")):
            with self.subTest(**kw):
                s, b = self.ask(kw)
                v = json.loads(b)
                self.assertEqual((s, v["type"], v["error"]["type"]), (400, "error", "invalid_request_error"), v)
                self.assertIn(f"'{names}'", v["error"]["message"])
                self.assertEqual(set(v), {"type", "error", "request_id"})

    def test_error_classes(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.create(max_tokens=20000)
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="claude")
        with self.assertRaises(anthropic.AuthenticationError) as got:
            anthropic.Anthropic(base_url=self.r.url, api_key="no", max_retries=0).messages.create(
                model="m", messages=ASK, max_tokens=1)
        self.assertEqual(got.exception.body["error"]["type"], "authentication_error")


if __name__ == "__main__":
    unittest.main()
