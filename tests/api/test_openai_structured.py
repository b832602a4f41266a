#!/usr/bin/env python3
"""Structured output through the official OpenAI SDK for Python, with Pydantic models, and the fields of vLLM and
llama-server, against the real daemon and the default model: answers are always of the form that was asked for."""
import enum
import json
import os
import re
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, List, Literal, Optional, Union

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SMOLLM2, Daemon  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from relay import Relay  # noqa: E402

import jsonschema  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

ASK = [{"role": "user", "content": "Describe a person who lives in Paris."}]


class Colour(str, enum.Enum):
    red = "red"
    green = "green"


# All bounded: whatever the model writes, it ends.
Short = Annotated[str, Field(max_length=20)]
Small = Annotated[int, Field(ge=0, le=99999)]


class Address(BaseModel):
    street: Short
    zip: Small


class Person(BaseModel):
    name: Short
    age: Small
    colour: Colour
    address: Address
    tags: List[Literal["a", "b"]] = Field(max_length=3)
    nick: Optional[Short]
    either: Union[Small, bool]


class Node(BaseModel):
    value: int
    next: Optional["Node"]


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon(model=SMOLLM2, name="smollm2-135m")
        cls.r = Relay(cls.d.url)
        cls.c = openai.OpenAI(base_url=cls.r.url + "/v1", api_key="x", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.r.__exit__()
        cls.d.__exit__(None, None, None)
        assert not cls.r.bad, cls.r.bad[:5]
        assert cls.r.seen

    def chat(self, extra=None, **kw):
        return self.c.chat.completions.create(**{"model": "smollm2-135m", "messages": ASK, "max_tokens": 300, "seed": 1,
                                                 "extra_body": extra, **kw})

    def schema(self, schema, **kw):
        r = self.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}, **kw)
        return r.choices[0]

    def test_pydantic(self):
        for kw in ({"temperature": 0}, {"temperature": 1.2, "seed": 5}):
            r = self.c.beta.chat.completions.parse(model="smollm2-135m", messages=ASK, max_tokens=600, response_format=Person, **kw)
            self.assertEqual(r.choices[0].finish_reason, "stop")
            self.assertIsInstance(r.choices[0].message.parsed, Person)

    def test_recursive(self):
        ch = self.schema(Node.model_json_schema(), temperature=0, max_tokens=200)
        if ch.finish_reason == "stop":
            Node.model_validate_json(ch.message.content)

    def test_stream_is_whole(self):
        rf = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {"a": {"type": "string", "maxLength": 12}, "b": {"enum": [1, "two", None]}},
            "required": ["a", "b"], "additionalProperties": False}}}
        for kw in ({"temperature": 0}, {"temperature": 1, "n": 3}):
            whole = self.chat(response_format=rf, **kw)
            text, finish = {}, {}
            for chunk in self.chat(response_format=rf, stream=True, **kw):
                for ch in chunk.choices:
                    text[ch.index] = text.get(ch.index, "") + (ch.delta.content or "")
                    finish[ch.index] = ch.finish_reason or finish.get(ch.index)
            for ch in whole.choices:
                self.assertEqual(text[ch.index], ch.message.content)
                self.assertEqual((finish[ch.index], ch.finish_reason), ("stop", "stop"))
                jsonschema.validate(json.loads(ch.message.content), rf["json_schema"]["schema"])

    def test_json_object(self):
        ch = self.chat(response_format={"type": "json_object"}, temperature=0.8).choices[0]
        if ch.finish_reason == "stop":
            self.assertIsInstance(json.loads(ch.message.content), dict)

    def test_every_field(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 17}}, "required": ["n"],
                  "additionalProperties": False}
        gbnf = 'root ::= "<" [a-c]{3} ">"'
        lark = "start: A A\nA: /[xy]/\n"

        def is_json(t):
            self.assertIn(json.loads(t)["n"], range(3, 18))

        def like(regex):
            return lambda t: self.assertRegex(t, re.compile(regex + r"\Z"))

        for extra, check in (
                ({"guided_json": schema}, is_json), ({"guided_json": json.dumps(schema)}, is_json),
                ({"structured_outputs": {"json": schema}}, is_json), ({"json_schema": schema}, is_json),
                ({"structured_outputs": {"json": schema, "disable_any_whitespace": True}}, like(r'\{"n":\d+\}')),
                ({"guided_regex": r"\d{3}-\d{2}"}, like(r"\d{3}-\d{2}")), ({"regex": "ab+c{2}"}, like("ab+c{2}")),
                ({"structured_outputs": {"regex": "[xyz]{5}"}}, like("[xyz]{5}")),
                ({"guided_choice": ["cat", "dog fish"]}, like("cat|dog fish")),
                ({"structured_outputs": {"choice": ["yes", "no"]}}, like("yes|no")),
                ({"guided_grammar": gbnf}, like("<[abc]{3}>")), ({"grammar": gbnf}, like("<[abc]{3}>")),
                ({"ebnf": gbnf}, like("<[abc]{3}>")), ({"structured_outputs": {"grammar": lark}}, like("[xy]{2}")),
                ({"grammar": ""}, lambda t: None), ({"guided_choice": []}, lambda t: None)):
            ch = self.chat(extra, max_tokens=40).choices[0]
            if ch.finish_reason == "stop":
                check(ch.message.content)
            r = self.c.completions.create(model="smollm2-135m", prompt="It is", max_tokens=40, seed=2, extra_body=extra)
            if r.choices[0].finish_reason == "stop":
                check(r.choices[0].text)

    def test_company(self):
        """Many at once, free ones between them: each has the answer that it has alone."""
        regs = [r"[a-f]{8}", r"\d{4}-\d{2}", r"(one|two|three)( (one|two|three)){3}", r"[A-Z][a-z]{3,9}\."]
        alone = [self.chat({"guided_regex": r}, temperature=0.9, seed=i).choices[0].message.content for i, r in enumerate(regs)]
        with ThreadPoolExecutor(12) as ex:
            jobs = [ex.submit(self.chat, {"guided_regex": r}, temperature=0.9, seed=i) for i, r in enumerate(regs)]
            free = [ex.submit(self.chat, None, max_tokens=20, temperature=0.9, seed=i) for i in range(6)]
            got = [j.result().choices[0].message.content for j in jobs]
            [j.result() for j in free]
        self.assertEqual(got, alone)
        for t, r in zip(got, regs):
            self.assertRegex(t, re.compile(r + r"\Z"))

    def test_length_and_logprobs(self):
        ch = self.chat({"guided_regex": "x{200}"}, max_tokens=3, logprobs=True, top_logprobs=2).choices[0]
        self.assertEqual(ch.finish_reason, "length")
        self.assertEqual(len(ch.logprobs.content), 3)
        for t in ch.logprobs.content:  # of the model's own distribution, before the mask
            self.assertLessEqual(t.logprob, t.top_logprobs[0].logprob)

    def test_refused(self):
        def schema(s):
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}}

        at = "response_format.json_schema.schema"
        for extra, param in (
                (schema({"type": "strnig"}), at + ".type"),
                (schema({"type": "object", "properties": {"s": {"type": "string", "pattern": "^[a-z$"}}}), at + ".properties.s.pattern"),
                (schema({"$ref": "#/$defs/nowhere"}), at + ".$ref"),
                (schema([1]), at), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
                ({"response_format": {"type": "xml"}}, "response_format.type"), ({"response_format": "json"}, "response_format"),
                ({"guided_regex": "(a"}, "guided_regex"), ({"guided_regex": 7}, "guided_regex"),
                ({"guided_regex": "(a|b)*a(a|b){30}"}, "guided_regex"),
                ({"guided_choice": [""]}, "guided_choice"), ({"guided_choice": "x"}, "guided_choice"),
                ({"grammar": "root ::= missing"}, "grammar"), ({"guided_json": "{"}, "guided_json"),
                ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
                ({"structured_outputs": []}, "structured_outputs"),
                ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
                (schema({"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": i + 9}]} for i in range(30)]}), at + ".anyOf"),
                ({"allowed_token_ids": [5], "guided_regex": "[0-9]+"}, None)):
            with self.assertRaises(openai.BadRequestError, msg=extra) as e:
                self.chat(extra, max_tokens=8)
            self.assertEqual(e.exception.param, param, extra)
            self.assertTrue(e.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
