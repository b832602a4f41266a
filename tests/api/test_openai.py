#!/usr/bin/env python3
"""The official OpenAI SDK for Python against the real daemon and the default model."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SMOLLM2, Daemon  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from relay import Relay  # noqa: E402

import openai  # noqa: E402

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


class OpenAI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--api-key", "sk-test", "--api-key", "sk-other", model=SMOLLM2, name="smollm2-135m")
        cls.r = Relay(cls.d.url)
        cls.c = openai.OpenAI(base_url=cls.r.url + "/v1", api_key="sk-test", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.r.__exit__()
        cls.d.__exit__(None, None, None)
        assert not cls.r.bad, cls.r.bad[:5]
        assert cls.r.seen

    def chat(self, **kw):
        return self.c.chat.completions.create(**{"model": "smollm2-135m", "messages": FRANCE, "temperature": 0, **kw})

    def test_chat(self):
        r = self.chat()
        self.assertEqual(r.choices[0].message.content, PARIS)
        self.assertEqual(r.choices[0].finish_reason, "stop")
        self.assertEqual(r.usage.prompt_tokens, 37)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
        self.assertIsNotNone(r.usage.prompt_tokens_details.cached_tokens)
        self.assertTrue(r._request_id)

    def test_cached_tokens(self):
        self.chat()
        self.assertGreaterEqual(self.chat().usage.prompt_tokens_details.cached_tokens, 32)

    def test_stream_equals_whole(self):
        for kw in ({}, {"temperature": 1.1, "seed": 3, "max_tokens": 40}, {"stop": ["France"]},
                   {"temperature": 0.9, "seed": 11, "n": 3, "max_tokens": 24}):
            whole = self.chat(**kw)
            text, finish = {}, {}
            for chunk in self.chat(stream=True, **kw):
                for ch in chunk.choices:
                    text[ch.index] = text.get(ch.index, "") + (ch.delta.content or "")
                    finish[ch.index] = ch.finish_reason or finish.get(ch.index)
            for ch in whole.choices:
                self.assertEqual(text[ch.index], ch.message.content, kw)
                self.assertEqual(finish[ch.index], ch.finish_reason, kw)

    WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "strict": True,
               "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30},
                                                               "unit": {"enum": ["celsius", "fahrenheit"]}},
                              "required": ["city", "unit"], "additionalProperties": False}}}

    def test_tool_loop(self):
        messages = [{"role": "user", "content": "What is the weather in Bern?"}]
        kw = {"tools": [self.WEATHER], "max_tokens": 100}
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            m = self.chat(messages=messages, tool_choice=choice, **kw).choices[0]
            self.assertEqual(m.finish_reason, "tool_calls")
            self.assertIsNone(m.message.content)
            self.assertEqual(len(m.message.tool_calls), 1)
            call = m.message.tool_calls[0]
            args = json.loads(call.function.arguments)
            self.assertEqual((call.type, call.function.name, set(args)), ("function", "get_weather", {"city", "unit"}))
            self.assertIn(args["unit"], ("celsius", "fahrenheit"))
        turn = messages + [m.message, {"role": "tool", "tool_call_id": call.id, "content": "12 degrees, rain"}]
        r = self.chat(messages=turn, **kw)
        self.assertGreater(r.usage.prompt_tokens, self.chat(messages=messages, **kw).usage.prompt_tokens)
        self.assertTrue(r.choices[0].message.content)
        self.assertIsNone(self.chat(messages=messages, tool_choice="none", **kw).choices[0].message.tool_calls)

    def test_tool_stream(self):
        """The SDK's own fold of a stream is the whole answer."""
        kw = {"model": "smollm2-135m", "messages": FRANCE, "temperature": 0, "tools": [self.WEATHER], "max_tokens": 100,
              "tool_choice": "required"}
        whole = self.c.chat.completions.create(**kw).choices[0]
        pieces = 0
        with self.c.chat.completions.stream(**kw) as stream:
            for event in stream:
                pieces += event.type == "tool_calls.function.arguments.delta"
            done = stream.get_final_completion().choices[0]
        self.assertGreater(pieces, 3)
        self.assertEqual(done.finish_reason, whole.finish_reason)
        self.assertEqual([(t.function.name, t.function.arguments) for t in done.message.tool_calls],
                         [(t.function.name, t.function.arguments) for t in whole.message.tool_calls])

    def test_stream_usage(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual([c.usage is not None for c in chunks], [False] * (len(chunks) - 1) + [True])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_logprobs(self):
        r = self.chat(logprobs=True, top_logprobs=4, max_tokens=5)
        content = r.choices[0].logprobs.content
        self.assertEqual(len(content), 5)
        self.assertEqual("".join(t.token for t in content), r.choices[0].message.content)
        for t in content:
            self.assertLessEqual(t.logprob, 0)
            self.assertEqual(len(t.top_logprobs), 4)
            self.assertEqual(bytes(t.bytes).decode(), t.token)
            self.assertEqual(t.top_logprobs[0].token, t.token)  # greedy

    def test_completions(self):
        r = self.c.completions.create(model="smollm2-135m", prompt="The capital of France is", max_tokens=8, temperature=0)
        self.assertIn("Paris", r.choices[0].text)
        r = self.c.completions.create(model="smollm2-135m", prompt=["One two three", "Red green"], n=2, max_tokens=4, seed=1)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2, 3])
        s = self.c.completions.create(model="smollm2-135m", prompt="Once upon", max_tokens=12, temperature=0, stream=True)
        w = self.c.completions.create(model="smollm2-135m", prompt="Once upon", max_tokens=12, temperature=0)
        self.assertEqual("".join(c.choices[0].text for c in s), w.choices[0].text)

    def test_models(self):
        self.assertEqual([m.id for m in self.c.models.list()], ["smollm2-135m"])
        self.assertEqual(self.c.models.retrieve("smollm2-135m").object, "model")
        with self.assertRaises(openai.NotFoundError):
            self.c.models.retrieve("nope")

    def test_error_classes(self):
        for kw, cls, param, code in (
                ({"temperature": 3}, openai.BadRequestError, "temperature", "decimal_above_max_value"),
                ({"model": "gpt-none"}, openai.NotFoundError, "model", "model_not_found"),
                ({"messages": []}, openai.BadRequestError, "messages", "empty_array"),
                ({"max_tokens": 10 ** 8}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
                ({"n": 0}, openai.BadRequestError, "n", "integer_below_min_value")):
            with self.assertRaises(cls) as got:
                self.chat(**kw)
            self.assertEqual((got.exception.param, got.exception.code), (param, code))
            self.assertEqual(got.exception.type, "invalid_request_error")
        with self.assertRaises(openai.AuthenticationError) as got:
            openai.OpenAI(base_url=self.r.url + "/v1", api_key="sk-wrong", max_retries=0).models.list()
        self.assertEqual(got.exception.code, "invalid_api_key")

    def test_second_key(self):
        c = openai.OpenAI(base_url=self.r.url + "/v1", api_key="sk-other", max_retries=0)
        self.assertEqual(len(list(c.models.list())), 1)

    def test_async(self):
        import asyncio

        async def many():
            async with openai.AsyncOpenAI(base_url=self.r.url + "/v1", api_key="sk-test", max_retries=0) as c:
                rs = await asyncio.gather(*(c.chat.completions.create(
                    model="smollm2-135m", messages=FRANCE, temperature=0) for _ in range(8)))
                return {r.choices[0].message.content for r in rs}
        self.assertEqual(asyncio.run(many()), {PARIS})


if __name__ == "__main__":
    unittest.main()
