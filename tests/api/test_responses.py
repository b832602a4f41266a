#!/usr/bin/env python3
"""/v1/responses against the real daemon: the published schemas, the order of events, stored answers, bad input, and the
official SDK."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_http  # noqa: E402
import test_schema  # noqa: E402
from jsonschema import Draft202012Validator  # noqa: E402

import openai  # noqa: E402

PATH = "/v1/responses"
KEYS = ("sk-one", "sk-two")
with open(os.path.join(test_http.TOP, "tests/data/openai/responses.json")) as f:
    ALL = test_schema.nullable(json.load(f)["components"]["schemas"])
TOOL = {"type": "function", "name": "get_weather", "description": "Weather", "strict": None,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def validator(name):
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": ALL}})


def event_schema(kind):
    """The schema of the event of this type."""
    for name, s in ALL.items():
        if s.get("properties", {}).get("type", {}).get("enum") == [kind] and "sequence_number" in s["properties"]:
            return name
    raise AssertionError(f"no event is called {kind}")


class Case(unittest.TestCase):
    ARGS = ()
    MODEL = test_http.MODEL

    @classmethod
    def setUpClass(cls):
        keys = [x for k in KEYS for x in ("--api-key", k)]
        cls.d = test_http.Daemon("--device", "cpu", "--ctx-size", "512", *keys, *cls.ARGS, model=cls.MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def ask(self, method, path, body=None, key=KEYS[0]):
        s, _, b = self.d.request(method, path, body, headers={"Authorization": f"Bearer {key}"})
        return s, json.loads(b)

    def create(self, key=KEYS[0], **kw):
        s, v = self.ask("POST", PATH, {"model": "m", "input": "hi", "max_output_tokens": 6, "ignore_eos": True, **kw}, key)
        self.assertEqual(s, 200, v)
        self.valid("Response", v)
        return v

    def valid(self, name, v):
        bad = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator(name).iter_errors(v)]
        self.assertEqual(bad, [], json.dumps(v)[:1500])

    def events(self, **kw):
        body = {"model": "m", "input": "hi", "max_output_tokens": 6, "ignore_eos": True, "stream": True, **kw}
        s, h, b = self.d.request("POST", PATH, body, headers={"Authorization": f"Bearer {KEYS[0]}"})
        self.assertEqual(s, 200, b)
        out = []
        for frame in b.decode().split("\n\n"):
            if not frame or frame.startswith(":"):
                continue
            first, data = frame.split("\n")
            v = json.loads(data.removeprefix("data: "))
            self.assertEqual(first, f"event: {v['type']}")
            self.valid(event_schema(v["type"]), v)
            out.append(v)
        self.walk(out)
        return out

    def walk(self, events):
        """The events as a state machine: every one is allowed where it stands, and their sum is the final response."""
        kinds = [e["type"] for e in events]
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
        self.assertIn(kinds[-1], ("response.completed", "response.incomplete"))
        final = events[-1]["response"]
        done, item, part, text = [], None, None, ""
        for e in events[2:-1]:
            kind = e["type"].removeprefix("response.")
            self.assertEqual(e["output_index"], len(done))
            if kind == "output_item.added":
                self.assertIsNone(item)
                item, text = e["item"], ""
                self.assertEqual(item["status"], "in_progress")
                continue
            self.assertIsNotNone(item)
            if kind == "output_item.done":
                self.assertIsNone(part)
                self.assertEqual(e["item"]["id"], item["id"])
                done.append(e["item"])
                item = None
                continue
            self.assertEqual(e["item_id"], item["id"])
            if kind.endswith("part.added"):
                self.assertIsNone(part)
                part = e["part"]["type"]
            elif kind.endswith("part.done"):
                self.assertEqual((e["part"]["type"], e["part"]["text"]), (part, text))
                part = None
            elif kind.endswith(".delta"):
                self.assertTrue(part or item["type"] == "function_call")
                text += e["delta"]
            else:
                self.assertTrue(kind.endswith(".done"), kind)
                self.assertEqual(e["arguments"] if item["type"] == "function_call" else e["text"], text)
        self.assertIsNone(item)
        self.assertEqual(done, final["output"])

    @staticmethod
    def said(v):
        """What does not differ between two answers to the same question."""
        v = json.loads(json.dumps(v))
        for item in v["output"]:
            item.pop("id")
        return {k: v[k] for k in v if k not in ("id", "created_at", "completed_at", "usage")}


class Responses(Case):
    KINDS = ({}, {"input": [{"role": "user", "content": "hi"}]}, {"instructions": "Be brief."}, {"temperature": 0},
             {"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"top_logprobs": 2},
             {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
             {"metadata": {"a": "b"}, "user": "u", "store": False, "truncation": "auto"},
             {"text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "low", "summary": "auto"}},
             {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "boolean"}}}, "ignore_eos": False})

    def test_whole_and_stream(self):
        for kw in self.KINDS:
            with self.subTest(**kw):
                w = self.create(seed=4, **kw)
                ev = self.events(seed=4, **kw)
                self.assertEqual(self.said(ev[-1]["response"]), self.said(w))
                self.assertEqual(w["usage"]["output_tokens"], ev[-1]["response"]["usage"]["output_tokens"])

    def test_logprobs(self):
        v = self.create(top_logprobs=3, temperature=0)
        lp = v["output"][0]["content"][0]["logprobs"]
        self.assertEqual([len(t["top_logprobs"]) for t in lp], [3] * 6)
        ev = self.events(top_logprobs=3, temperature=0)
        streamed = [t for e in ev if e["type"] == "response.output_text.delta" for t in e["logprobs"]]
        self.assertEqual([(t["token"], t["logprob"]) for t in streamed], [(t["token"], t["logprob"]) for t in lp])

    def test_schema_is_kept(self):
        v = self.create(text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "boolean"}}}, ignore_eos=False)
        self.assertIn(v["output"][0]["content"][0]["text"].strip(), ("true", "false"))

    def test_conversation(self):
        one = self.create(temperature=0)
        two = self.create(temperature=0, previous_response_id=one["id"], input="more")
        self.assertEqual(two["previous_response_id"], one["id"])
        text = one["output"][0]["content"][0]["text"]
        by_hand = self.create(temperature=0, input=[
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": text}, {"role": "user", "content": "more"}])
        self.assertEqual(two["output"][0]["content"], by_hand["output"][0]["content"])
        self.assertEqual(two["usage"]["input_tokens"], by_hand["usage"]["input_tokens"])
        by_id = self.create(temperature=0, input=[{"role": "user", "content": "hi"},
                                                  {"type": "item_reference", "id": one["output"][0]["id"]},
                                                  {"role": "user", "content": "more"}])
        self.assertEqual(by_id["output"][0]["content"], two["output"][0]["content"])
        s, items = self.ask("GET", f"{PATH}/{two['id']}/input_items?order=asc")
        self.assertEqual(s, 200)
        self.valid("ResponseItemList", items)
        self.assertEqual([i["role"] for i in items["data"]], ["user", "assistant", "user"])
        self.assertEqual(items["data"][1]["id"], one["output"][0]["id"])
        s, page = self.ask("GET", f"{PATH}/{two['id']}/input_items?limit=1&after={items['data'][2]['id']}")
        self.assertEqual((page["data"], page["has_more"]), ([items["data"][1]], True))

    def test_stored(self):
        v = self.create()
        self.assertEqual(self.ask("GET", f"{PATH}/{v['id']}"), (200, v))
        for key, code in ((KEYS[1], 404), (KEYS[0], 200)):
            for method, tail in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
                self.assertEqual(self.ask(method, f"{PATH}/{v['id']}{tail}", key=key)[0], code, (key, method, tail))
        self.assertEqual(self.ask("GET", f"{PATH}/{v['id']}")[0], 404)
        s, e = self.ask("POST", PATH, {"model": "m", "input": "x", "previous_response_id": v["id"]})
        self.assertEqual((s, e["error"]["param"]), (400, "previous_response_id"))
        other = self.create()
        s, e = self.ask("POST", PATH, {"model": "m", "input": "x", "previous_response_id": other["id"]}, key=KEYS[1])
        self.assertEqual((s, e["error"]["param"]), (400, "previous_response_id"))
        s, e = self.ask("POST", PATH, {"model": "m", "input": [{"type": "item_reference", "id": other["output"][0]["id"]}]}, key=KEYS[1])
        self.assertEqual((s, e["error"]["param"]), (400, "input[0].id"))
        s, e = self.ask("POST", f"{PATH}/{other['id']}/cancel")
        self.assertEqual((s, e["error"]["param"]), (400, "background"))
        self.assertEqual(self.ask("POST", f"{PATH}/resp_no/cancel")[0], 404)
        unkept = self.create(store=False)
        self.assertEqual(self.ask("GET", f"{PATH}/{unkept['id']}")[0], 404)
        ev = self.events()
        self.assertEqual(self.ask("GET", f"{PATH}/{ev[-1]['response']['id']}"), (200, ev[-1]["response"]))

    def test_methods(self):
        s, h, _ = self.d.request("PUT", PATH + "/resp_x", {}, headers={"Authorization": f"Bearer {KEYS[0]}"})
        self.assertEqual((s, h["Allow"]), (405, "GET, HEAD, POST, DELETE"))
        self.assertEqual(self.ask("GET", PATH + "/resp_x/zork")[0], 404)

    def test_truncation(self):
        long = [{"role": "user", "content": f"word {i} " * 12} for i in range(20)]
        s, e = self.ask("POST", PATH, {"model": "m", "input": long})
        self.assertEqual((s, e["error"]["param"], e["error"]["code"]), (400, "input", "context_length_exceeded"))
        v = self.create(input=long, truncation="auto")
        self.assertLessEqual(v["usage"]["total_tokens"], 512)
        self.assertGreater(v["usage"]["input_tokens"], 200)

    def test_count(self):
        v = self.create(instructions="Be brief.")
        s, n = self.ask("POST", PATH + "/input_tokens", {"model": "m", "input": "hi", "instructions": "Be brief."})
        self.assertEqual(s, 200)
        self.valid("TokenCountsResource", n)
        self.assertEqual(n["input_tokens"], v["usage"]["input_tokens"])

    def test_bad_input(self):
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        for kw, param in (
                ({"input": None}, "input"), ({"input": 3}, "input"), ({"input": []}, "input"), ({"input": [3]}, "input[0]"),
                ({"input": [{"role": "user"}]}, "input[0].content"), ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
                ({"input": [{"content": "x"}]}, "input[0].role"), ({"input": [{"type": "zork"}]}, "input[0].type"),
                ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
                ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
                ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
                ({"input": [{k: call[k] for k in call if k != "call_id"}]}, "input[0].call_id"),
                ({"input": [{**call, "arguments": {}}]}, "input[0].arguments"),
                ({"input": [call, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output"),
                ({"input": [{"type": "item_reference", "id": "msg_no"}]}, "input[0].id"),
                ({"instructions": 4}, "instructions"), ({"previous_response_id": "resp_no"}, "previous_response_id"),
                ({"tools": {}}, "tools"), ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": [{}]}, "tools[0].type"),
                ({"tools": [TOOL, {"type": "function"}]}, "tools[1].name"), ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
                ({"tools": [{**TOOL, "parameters": 3}]}, "tools[0].parameters"),
                ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice.name"),
                ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"), ({"tool_choice": "zork"}, "tool_choice"),
                ({"text": 3}, "text"), ({"text": {"format": {}}}, "text.format.type"), ({"text": {"format": {"type": "x"}}}, "text.format.type"),
                ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}}, "text.format.schema.type"),
                ({"text": {"verbosity": "x"}}, "text.verbosity"), ({"reasoning": {"effort": "x"}}, "reasoning.effort"),
                ({"reasoning": {"summary": "x"}}, "reasoning.summary"), ({"include": ["x"]}, "include[0]"),
                ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_output_tokens": 9999}, "max_output_tokens"),
                ({"temperature": 3}, "temperature"), ({"top_logprobs": 21}, "top_logprobs"), ({"truncation": "x"}, "truncation"),
                ({"metadata": {"a": 1}}, "metadata.a"), ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
                ({"store": "x"}, "store"), ({"stream": 1}, "stream"), ({"stream_options": {}}, "stream_options"),
                ({"background": True}, "background"), ({"conversation": "c"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"),
                ({"model": "zork"}, "model")):
            with self.subTest(**kw):
                s, v = self.ask("POST", PATH, {"model": "m", "input": "hi", "max_output_tokens": 3, **kw})
                self.assertEqual((s, v.get("error", {}).get("param")), (404 if "model" in kw else 400, param), v)
        v = self.create()
        for q, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=x", "order"), ("after=x", "after")):
            s, e = self.ask("GET", f"{PATH}/{v['id']}/input_items?{q}")
            self.assertEqual((s, e["error"]["param"]), (400, param), e)


class Sdk(Case):
    INPUT = "What is the capital of France?"

    @classmethod
    def setUpClass(cls):
        from daemon import SMOLLM2
        cls.MODEL = SMOLLM2
        super().setUpClass()
        cls.c = openai.OpenAI(base_url=cls.d.url + "/v1", api_key=KEYS[0], max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        super().tearDownClass()

    def test_create(self):
        r = self.c.responses.create(model="m", input=self.INPUT, temperature=0)
        self.assertEqual(r.output_text, "The capital of France is Paris.")
        self.assertEqual(r.status, "completed")
        self.assertEqual(self.c.responses.retrieve(r.id).output_text, r.output_text)
        self.assertEqual([i.type for i in self.c.responses.input_items.list(r.id)], ["message"])
        self.assertEqual(self.c.responses.input_tokens.count(model="m", input=self.INPUT).input_tokens, r.usage.input_tokens)
        self.c.responses.delete(r.id)
        with self.assertRaises(openai.NotFoundError):
            self.c.responses.retrieve(r.id)

    def test_stream(self):
        with self.c.responses.stream(model="m", input=self.INPUT, temperature=0) as s:
            deltas = "".join(e.delta for e in s if e.type == "response.output_text.delta")
            final = s.get_final_response()
        self.assertEqual(deltas, "The capital of France is Paris.")
        self.assertEqual(final.output_text, deltas)

    def test_parse(self):
        import pydantic

        class Answer(pydantic.BaseModel):
            capital: bool
        r = self.c.responses.parse(model="m", input="Is Paris a capital?", text_format=Answer, temperature=0)
        self.assertIsInstance(r.output_parsed, Answer)

    def test_tools(self):
        """A forced call, its result, and the answer to it: with items sent back, and with the stored conversation."""
        tool = {**TOOL, "strict": True, "parameters": {**TOOL["parameters"], "additionalProperties": False}}
        kw = {"model": "m", "tools": [tool], "temperature": 0, "max_output_tokens": 60}
        ask = [{"role": "user", "content": "Weather in Paris?"}]
        r = self.c.responses.create(input=ask, tool_choice="required", parallel_tool_calls=False, **kw)
        self.assertEqual([i.type for i in r.output], ["function_call"])
        call = r.output[0]
        self.assertEqual((call.name, list(json.loads(call.arguments))), ("get_weather", ["city"]))
        with self.c.responses.stream(input=ask, tool_choice={"type": "function", "name": "get_weather"}, **kw) as s:
            args = "".join(e.delta for e in s if e.type == "response.function_call_arguments.delta")
            self.assertEqual(args, s.get_final_response().output[0].arguments)
        self.assertEqual(args, call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
        by_hand = self.c.responses.create(input=ask + [i.model_dump(exclude_none=True) for i in r.output] + [result], tool_choice="none", **kw)
        stored = self.c.responses.create(input=[result], previous_response_id=r.id, tool_choice="none", **kw)
        self.assertTrue(stored.output_text)
        self.assertEqual(by_hand.output_text, stored.output_text)

    def test_error(self):
        with self.assertRaises(openai.BadRequestError) as got:
            self.c.responses.create(model="m", input="x", background=True)
        self.assertEqual(got.exception.param, "background")


if __name__ == "__main__":
    unittest.main()
