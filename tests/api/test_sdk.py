#!/usr/bin/env python3
"""What the official SDKs for Python do beyond single requests: stream helpers, Pydantic models, tool loops, embeddings,
pictures, long chains of responses. Every answer and event that they get is checked on its way (relay.py)."""
import asyncio
import base64
import json
import os
import struct
import sys
import tempfile
import unittest
from typing import List, Literal, Optional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SMOLLM2, TOP, Daemon  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from relay import Relay  # noqa: E402
from test_embeddings import with_tokenizer  # noqa: E402

import anthropic  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel  # noqa: E402

MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
DESCRIBE = [{"role": "user", "content": "Describe a person who lives in Paris."}]


class Person(BaseModel):
    name: str
    age: int
    colour: Literal["red", "green"]
    nick: Optional[str]
    tags: List[Literal["a", "b"]]


class GetWeather(BaseModel):
    """Weather of a city."""
    city: str


class Pick(BaseModel):
    """Picks balls."""
    colour: Literal["red", "blue"]
    count: int


# A small model calls a tool when it has seen how, and a pattern holds it to what a call and an answer look like.
CALLS = r'<tool_call>\{"name": "GetWeather", "arguments": \{"city": "[A-Z][a-z]{2,8}"\}\}</tool_call>|It is [a-z]{3,9} in [A-Z][a-z]{2,8}\.'


def weather_turn(city, sky):
    call = {"id": f"call_{city}", "type": "function", "function": {"name": "GetWeather", "arguments": json.dumps({"city": city})}}
    return [{"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{city}", "content": sky},
            {"role": "assistant", "content": f"It is {sky} in {city}."}]


def setUpModule():
    """One daemon and one relay for all of them."""
    Case.tmp = tempfile.TemporaryDirectory()
    Case.d = Daemon("--api-key", "sk-test", f"tiny-t2i={os.path.join(TOP, 'models', 'tiny-t2i')}",
                    f"vec={with_tokenizer(Case.tmp.name, 'bert')}", model=SMOLLM2, name=MODEL)
    Case.r = Relay(Case.d.url)
    Case.c = openai.OpenAI(base_url=Case.r.url + "/v1", api_key="sk-test", max_retries=0)
    Case.a = anthropic.Anthropic(base_url=Case.r.url, api_key="sk-test", max_retries=0)


def tearDownModule():
    Case.c.close()
    Case.a.close()
    Case.r.__exit__()
    Case.d.__exit__(None, None, None)
    Case.tmp.cleanup()


class Case(unittest.TestCase):
    def setUp(self):
        self.r.bad.clear()
        self.r.seen.clear()

    def tearDown(self):
        self.assertEqual(self.r.bad, [])


class Chat(Case):
    def test_parse(self):
        r = self.c.chat.completions.parse(model=MODEL, messages=DESCRIBE, temperature=0, max_tokens=400, response_format=Person)
        m = r.choices[0].message
        self.assertEqual(m.parsed, Person.model_validate_json(m.content))

    def test_stream_parse(self):
        kw = {"model": MODEL, "messages": DESCRIBE, "temperature": 0, "max_tokens": 400, "response_format": Person}
        kinds, deltas = set(), ""
        with self.c.chat.completions.stream(**kw) as s:
            for e in s:
                kinds.add(e.type)
                deltas += e.delta if e.type == "content.delta" else ""
            m = s.get_final_completion().choices[0].message
        self.assertEqual(deltas, m.content)
        self.assertEqual(m.parsed, self.c.chat.completions.parse(**kw).choices[0].message.parsed)
        self.assertGreaterEqual(kinds, {"chunk", "content.delta", "content.done"})

    def test_stream_events(self):
        kw = {"model": MODEL, "messages": ASK, "temperature": 0, "logprobs": True, "stream_options": {"include_usage": True}}
        probs = 0
        with self.c.chat.completions.stream(**kw) as s:
            for e in s:
                probs += len(e.content) if e.type == "logprobs.content.delta" else 0
                if e.type == "content.done":
                    self.assertEqual(e.content, PARIS)
            r = s.get_final_completion()
        self.assertEqual(r.choices[0].message.content, PARIS)
        self.assertEqual(len(r.choices[0].logprobs.content), probs)
        self.assertEqual(r.usage.completion_tokens, probs)

    def test_pydantic_tools(self):
        tools = [openai.pydantic_function_tool(Pick), openai.pydantic_function_tool(GetWeather)]
        kw = {"model": MODEL, "messages": DESCRIBE, "temperature": 0, "max_tokens": 100, "tools": tools}
        for choice, kinds in (("required", (Pick, GetWeather)), ({"type": "function", "function": {"name": "Pick"}}, (Pick,))):
            r = self.c.chat.completions.parse(tool_choice=choice, **kw).choices[0]
            self.assertEqual(r.finish_reason, "tool_calls")
            for call in r.message.tool_calls:
                self.assertIsInstance(call.function.parsed_arguments, kinds)
            with self.c.chat.completions.stream(tool_choice=choice, **kw) as s:
                done = [e.parsed_arguments for e in s if e.type == "tool_calls.function.arguments.done"]
            self.assertEqual(done, [c.function.parsed_arguments for c in r.message.tool_calls])

    def loop(self, ask):
        """The loop that every agent runs: calls are answered until there are none."""
        messages, asked = [*weather_turn("Bern", "rainy"), *weather_turn("Rome", "sunny"),
                           {"role": "user", "content": "What is the weather in Oslo?"}], []
        for _ in range(4):
            m = ask(model=MODEL, messages=messages, temperature=0, max_tokens=60, extra_body={"regex": CALLS},
                    tools=[openai.pydantic_function_tool(GetWeather)])
            messages.append(m.model_dump(exclude_none=True, exclude={"parsed": True, "tool_calls": {"__all__": {"function": {"parsed_arguments"}}}}))
            if not m.tool_calls:
                return asked, m.content
            for call in m.tool_calls:
                asked.append(call.function.parsed_arguments.city)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "snowy"})
        self.fail("the loop does not end")

    def test_tool_loop(self):
        def streamed(**kw):
            with self.c.chat.completions.stream(**kw) as s:
                return s.get_final_completion().choices[0].message

        whole = self.loop(lambda **kw: self.c.chat.completions.parse(**kw).choices[0].message)
        self.assertEqual(whole, (["Oslo"], "It is snowy in Oslo."))
        self.assertEqual(self.loop(streamed), whole)

    def test_async_streams(self):
        async def one(c):
            async with c.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as s:
                return (await s.get_final_completion()).choices[0].message.content

        async def many():
            async with openai.AsyncOpenAI(base_url=self.r.url + "/v1", api_key="sk-test", max_retries=0) as c:
                return set(await asyncio.gather(*(one(c) for _ in range(4))))
        self.assertEqual(asyncio.run(many()), {PARIS})

    def test_raw_answers(self):
        raw = self.c.chat.completions.with_raw_response.create(model=MODEL, messages=ASK, temperature=0)
        self.assertEqual(raw.parse().choices[0].message.content, PARIS)
        self.assertTrue(raw.headers["x-request-id"])
        with self.c.completions.with_streaming_response.create(model=MODEL, prompt="Once", max_tokens=4) as r:
            self.assertIn("choices", json.loads(r.read()))

    def test_left_early(self):
        s = self.c.chat.completions.create(model=MODEL, messages=ASK, stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
        next(iter(s))
        s.close()
        self.assertEqual(self.c.chat.completions.create(model=MODEL, messages=ASK, temperature=0).choices[0].message.content, PARIS)

    def test_errors(self):
        for kw, cls in (({"temperature": 3}, openai.BadRequestError), ({"model": "none"}, openai.NotFoundError)):
            with self.assertRaises(cls):
                self.c.chat.completions.create(**{"model": MODEL, "messages": ASK, **kw})
        self.assertEqual(self.r.seen["Error"], 2)


class Responses(Case):
    def test_parse(self):
        kw = {"model": MODEL, "input": "Describe a person who lives in Paris.", "temperature": 0, "max_output_tokens": 400, "text_format": Person}
        r = self.c.responses.parse(**kw)
        self.assertIsInstance(r.output_parsed, Person)
        with self.c.responses.stream(**kw) as s:
            text = "".join(e.delta for e in s if e.type == "response.output_text.delta")
            self.assertEqual(s.get_final_response().output_parsed, r.output_parsed)
        self.assertEqual(text, r.output_text)

    def test_chain(self):
        """A conversation by previous_response_id says what the same messages say."""
        asks, chain, prior, messages = ["What is the capital of France?", "And of Italy?", "Which is larger?"], [], None, []
        for ask in asks:
            r = self.c.responses.create(model=MODEL, input=ask, temperature=0, max_output_tokens=20,
                                        **({"previous_response_id": prior} if prior else {}))
            prior = r.id
            chain.append(r.output_text)
            messages.append({"role": "user", "content": ask})
            whole = self.c.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=20).choices[0].message.content
            self.assertEqual(r.output_text, whole)
            messages.append({"role": "assistant", "content": whole})
        items = list(self.c.responses.input_items.list(prior, order="asc", limit=2))  # the SDK turns the pages
        self.assertEqual([i.role for i in items], ["user", "assistant"] * 2 + ["user"])
        self.assertEqual(self.c.responses.retrieve(prior).output_text, chain[-1])

    def test_pydantic_tools(self):
        kw = {"model": MODEL, "input": "Pick two balls.", "temperature": 0, "max_output_tokens": 100,
              "tools": [openai.pydantic_function_tool(Pick)], "tool_choice": "required"}
        kw["tools"] = [{"type": "function", **t["function"]} for t in kw["tools"]]
        r = self.c.responses.parse(**kw)
        call = r.output[0]
        self.assertIsInstance(Pick.model_validate_json(call.arguments), Pick)
        with self.c.responses.stream(**kw) as s:
            args = "".join(e.delta for e in s if e.type == "response.function_call_arguments.delta")
        self.assertEqual(args, call.arguments)

    def test_stream_of_create(self):
        ev = list(self.c.responses.create(model=MODEL, input="What is the capital of France?", temperature=0, stream=True))
        self.assertEqual([ev[0].type, ev[-1].type], ["response.created", "response.completed"])
        self.assertEqual(ev[-1].response.output_text, PARIS)
        self.assertEqual([e.sequence_number for e in ev], list(range(len(ev))))

    def test_count(self):
        n = self.c.responses.input_tokens.count(model=MODEL, input="What is the capital of France?").input_tokens
        self.assertEqual(n, self.c.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1).usage.prompt_tokens)


class Others(Case):
    def test_embeddings(self):
        texts = ["w5 w6", "w7"]
        floats = self.c.embeddings.create(model="vec", input=texts, encoding_format="float")
        unpacked = self.c.embeddings.create(model="vec", input=texts)  # the SDK asks for base64 and unpacks it
        packed = self.c.embeddings.create(model="vec", input=texts, encoding_format="base64")
        for f, u, p in zip(floats.data, unpacked.data, packed.data):
            self.assertEqual([struct.unpack("f", struct.pack("f", x))[0] for x in f.embedding], list(u.embedding))
            self.assertEqual(base64.b64decode(p.embedding), struct.pack(f"<{len(u.embedding)}f", *u.embedding))
        short = self.c.embeddings.create(model="vec", input=texts, dimensions=8, encoding_format="float")
        self.assertEqual([len(x.embedding) for x in short.data], [8, 8])
        ids = self.c.embeddings.create(model="vec", input=[[1, 5, 6, 2]], encoding_format="float")
        self.assertEqual(ids.data[0].embedding, floats.data[0].embedding)
        with self.assertRaises(openai.BadRequestError) as got:
            self.c.embeddings.create(model="vec", input=texts, dimensions=0)
        self.assertEqual(got.exception.param, "dimensions")

    def test_every_embedding_field_is_known(self):
        import test_schema
        fields = test_schema.SPEC["request_fields"]["CreateEmbeddingRequest"]
        s, h, b = self.d.request("POST", "/v1/embeddings", {**{k: None for k in fields}, "model": "vec", "input": "w5"},
                                 headers={"Authorization": "Bearer sk-test"})
        self.assertEqual((s, h["x-stepd-warning"]), (200, None), b)

    def test_models(self):
        self.assertEqual(sorted(m.id for m in self.c.models.list()), [MODEL, "tiny-t2i", "vec"])
        self.assertEqual(self.c.models.retrieve(MODEL).id, MODEL)

    def test_images(self):
        kw = {"model": "tiny-t2i", "prompt": "a red circle", "extra_body": {"steps": 2, "seed": 7}}
        whole = self.c.images.generate(**kw).data[0].b64_json
        ev = list(self.c.images.generate(stream=True, partial_images=1, **kw))
        self.assertEqual([e.type for e in ev], ["image_generation.partial_image", "image_generation.completed"])
        self.assertEqual(ev[-1].b64_json, whole)
        png = ("a.png", base64.b64decode(whole), "image/png")
        edit = self.c.images.edit(image=png, **{**kw, "prompt": "a blue star"})
        self.assertTrue(base64.b64decode(edit.data[0].b64_json).startswith(b"\x89PNG"))
        ev = list(self.c.images.edit(image=png, stream=True, **kw))
        self.assertEqual(ev[-1].type, "image_edit.completed")

    def test_completions(self):
        kw = {"model": MODEL, "prompt": ["The capital of France is", "One two three"], "max_tokens": 6, "temperature": 0, "logprobs": 2}
        whole, text = self.c.completions.create(**kw), ["", ""]
        for c in self.c.completions.create(stream=True, **kw):
            for ch in c.choices:
                text[ch.index] += ch.text
        self.assertEqual(text, [c.text for c in whole.choices])


class Messages(Case):
    TOOL = {"name": "get_weather", "description": "Weather", "input_schema": GetWeather.model_json_schema()}

    def kw(self, **kw):
        return {"model": MODEL, "messages": ASK, "max_tokens": 60, "extra_body": {"temperature": 0}, **kw}

    def test_stream_with_tools(self):
        kw = self.kw(tools=[self.TOOL], tool_choice={"type": "any"})
        whole = self.a.messages.create(**kw)
        self.assertEqual(whole.stop_reason, "tool_use")
        with self.a.messages.stream(**kw) as s:
            parts = "".join(e.partial_json for e in s if e.type == "input_json")
            m = s.get_final_message()
        self.assertEqual([(b.type, b.name, b.input) for b in m.content], [(b.type, b.name, b.input) for b in whole.content])
        self.assertEqual(json.loads(parts), m.content[0].input)
        GetWeather.model_validate(m.content[0].input)

    def test_stream_text(self):
        with self.a.messages.stream(**self.kw()) as s:
            self.assertEqual("".join(s.text_stream), PARIS)
            self.assertEqual(s.get_final_text(), PARIS)

    def test_count(self):
        kw = {"model": MODEL, "messages": ASK, "tools": [self.TOOL], "system": "Be brief."}
        n = self.a.messages.count_tokens(**kw).input_tokens
        r = self.a.messages.create(max_tokens=1, **kw)
        self.assertEqual(n, r.usage.input_tokens + r.usage.cache_read_input_tokens)

    def test_async_stream(self):
        async def ask():
            async with anthropic.AsyncAnthropic(base_url=self.r.url, api_key="sk-test", max_retries=0) as c:
                async with c.messages.stream(**self.kw()) as s:
                    return await s.get_final_text()
        self.assertEqual(asyncio.run(ask()), PARIS)

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.a.messages.create(**self.kw(max_tokens=20000))
        self.assertEqual(self.r.seen["ErrorResponse"], 1)


class RelaySees(unittest.TestCase):
    def test_faults(self):
        """The checks are not blind: each of these answers has a fault."""
        r = Relay("http://127.0.0.1:1")
        with r:
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": "0", "delta": {}, "finish_reason": None}]}
            for method, path, status, what, body in (
                    ("POST", "/v1/chat/completions", 200, "application/json", "{}"),
                    ("POST", "/v1/chat/completions", 200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"),
                    ("POST", "/v1/chat/completions", 200, "application/json", "no json"),
                    ("POST", "/v1/embeddings", 200, "application/json", '{"object": "list", "model": "m", "data": [{"index": 0, "object": "embedding", "embedding": "#"}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}'),
                    ("POST", "/v1/responses", 200, "text/event-stream", 'event: x\ndata: {"type": "response.zork"}\n\n'),
                    ("POST", "/v1/responses", 200, "text/event-stream", 'event: x\ndata: {"type": "response.output_text.delta", "delta": 3}\n\n'),
                    ("GET", "/v1/responses/resp_1/input_items", 200, "application/json", '{"data": []}'),
                    ("POST", "/v1/messages", 200, "application/json", '{"type": "message", "content": [{"type": "text"}]}'),
                    ("POST", "/v1/messages", 200, "text/event-stream", 'event: x\ndata: {"type": "content_block_delta", "index": "a"}\n\n'),
                    ("GET", "/v1/models", 401, "application/json", '{"error": {"message": 3}}')):
                r.bad.clear()
                r.check(method, path, status, what, body.encode())
                self.assertTrue(r.bad, (path, body))


if __name__ == "__main__":
    unittest.main()
