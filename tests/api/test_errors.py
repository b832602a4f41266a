#!/usr/bin/env python3
"""Malformed and refused requests: each row names the request, the status, and the error's param and code. On the null
device, since no such request may reach a model. Standard library only."""
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_http  # noqa: E402

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
ANY = object()
LONG = {"a": 1}
for _ in range(62):
    LONG = {"a": LONG}
VOCAB = 512



def function(**kw):
    return {"type": "function", "function": {"name": "f", **kw}}


TOOL = function(parameters={"type": "object", "properties": {}})

def chat(**kw):
    return {k: v for k, v in {"model": "m", "messages": USER, "max_tokens": 4, **kw}.items() if v is not ...}


def comp(**kw):
    return {k: v for k, v in {"model": "m", "prompt": "hi", "max_tokens": 4, **kw}.items() if v is not ...}


def msg(**kw):
    return chat(messages=[{k: v for k, v in {"role": "user", "content": "hi", **kw}.items() if v is not ...}])


# Fields of both endpoints: (members, param, code)
BOTH = [
    ({"model": ...}, "model", "missing_required_parameter"),  # 23
    ({"model": None}, "model", "missing_required_parameter"),
    ({"model": 5}, "model", "invalid_type"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),  # 33
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": "0.5"}, "temperature", "invalid_type"),  # 34
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"top_p": -0.1}, "top_p", "decimal_below_min_value"),  # 35
    ({"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    ({"presence_penalty": -2.1}, "presence_penalty", "decimal_below_min_value"),  # 36
    ({"presence_penalty": 2.1}, "presence_penalty", "decimal_above_max_value"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "decimal_below_min_value"),
    ({"frequency_penalty": 2.1}, "frequency_penalty", "decimal_above_max_value"),
    ({"n": 0}, "n", "integer_below_min_value"),  # 37
    ({"n": 129}, "n", "integer_above_max_value"),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),  # 39
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": "4"}, "max_tokens", "invalid_type"),
    ({"max_tokens": 2000000}, "max_tokens", "context_length_exceeded"),  # 41
    ({"logit_bias": []}, "logit_bias", "invalid_type"),  # 45
    ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": -101}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": "x"}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {str(VOCAB): 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"abc": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"\t5": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"99999999999999999999": 1}}, "logit_bias", "invalid_value"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "array_above_max_length"),  # 46
    ({"stop": 7}, "stop", "invalid_type"),
    ({"stop": ["a", 7]}, "stop", "invalid_type"),
    ({"stop": [None]}, "stop", "invalid_type"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a", ""]}, "stop", "invalid_value"),
    ({"stop": "x" * 1025}, "stop", "string_above_max_length"),
    ({"seed": 1.5}, "seed", "invalid_type"),  # 47
    ({"seed": 2**63}, "seed", "invalid_type"),
    ({"seed": "1"}, "seed", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),  # 48
    ({"stream": 1}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", None),  # 49
    ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ({"response_format": "json"}, "response_format", "invalid_type"),  # 50
    ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {}}, "response_format.type", "invalid_value"),
    ({"top_k": "x"}, "top_k", "invalid_value"),  # 56
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"min_p": 2}, "min_p", "invalid_value"),
    ({"min_p": -0.5}, "min_p", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"repeat_penalty": 0}, "repeat_penalty", "invalid_value"),
    ({"ignore_eos": "yes"}, "ignore_eos", "invalid_value"),
    ({"min_tokens": -1}, "min_tokens", "invalid_value"),
    ({"min_tokens": 5}, "min_tokens", "invalid_value"),
    ({"priority": "high"}, "priority", "invalid_value"),
    ({"cache_salt": 5}, "cache_salt", "invalid_value"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens", "invalid_value"),
    ({"stop_token_ids": "5"}, "stop_token_ids", "invalid_type"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids", "invalid_value"),
    ({"stop_token_ids": list(range(17))}, "stop_token_ids", "array_above_max_length"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_type"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids", "invalid_value"),
    ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
    ({"guided_regex": "a+("}, "guided_regex", "invalid_value"),
]

ONLY_CHAT = [
    (chat(messages=...), "messages", "missing_required_parameter"),  # 25
    (chat(messages={}), "messages", "invalid_type"),
    (chat(messages="hi"), "messages", "invalid_type"),
    (chat(messages=[]), "messages", "empty_array"),  # 26
    (chat(messages=["hi"]), "messages[0]", "invalid_type"),
    (chat(messages=USER * 2049), "messages", "array_above_max_length"),
    (msg(role=...), "messages[0].role", "missing_required_parameter"),  # 27
    (msg(role="bot"), "messages[0].role", "invalid_value"),
    (msg(role=7), "messages[0].role", "invalid_type"),
    (chat(messages=USER + [{"role": "bot", "content": ""}]), "messages[1].role", "invalid_value"),
    (msg(content=None), "messages[0].content", "invalid_type"),  # 28
    (msg(content=...), "messages[0].content", "invalid_type"),
    (msg(content=7), "messages[0].content", "invalid_type"),
    (msg(role="assistant", content=None), "messages[0].content", "invalid_type"),
    (msg(content=[{"type": "smell"}]), "messages[0].content[0].type", "invalid_value"),  # 29
    (msg(content=[{"text": "hi"}]), "messages[0].content[0].type", "invalid_value"),
    (msg(content=["hi"]), "messages[0].content[0].type", "invalid_value"),
    (msg(content=[{"type": "text", "text": "a"}, {"type": "text"}]), "messages[0].content[1].text", "invalid_type"),
    (msg(content=[{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]),
     "messages[0].content", None),  # 30
    (msg(content=[{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]), "messages[0].content", None),
    (msg(name="a b"), "messages[0].name", "invalid_value"),  # 32
    (msg(name="a" * 65), "messages[0].name", "invalid_value"),
    (msg(name=""), "messages[0].name", "invalid_value"),
    (msg(name=5), "messages[0].name", "invalid_type"),
    (msg(role="assistant", tool_calls={}), "messages[0].tool_calls", "invalid_type"),
    (msg(role="assistant", tool_calls=[{}]), "messages[0].tool_calls", "invalid_value"),
    (msg(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": "[" * 100000}}]),
     "messages[0].tool_calls", "invalid_value"),
    (chat(max_tokens=0), "max_tokens", "integer_below_min_value"),  # 39
    (chat(max_tokens=..., max_completion_tokens=0), "max_completion_tokens", "integer_below_min_value"),
    (chat(max_tokens=3, max_completion_tokens=4), "max_tokens", None),  # 40
    (chat(max_tokens=..., max_completion_tokens=2000000), "max_completion_tokens", "context_length_exceeded"),
    (chat(messages=[{"role": "user", "content": "z" * 1100000}]), "messages", "context_length_exceeded"),  # 42
    (chat(logprobs=True, top_logprobs=21), "top_logprobs", "integer_above_max_value"),  # 43
    (chat(top_logprobs=2), "top_logprobs", None),
    (chat(logprobs=2), "logprobs", "invalid_type"),
    (chat(tools={}), "tools", "invalid_type"),  # 52
    (chat(tool_choice="maybe"), "tool_choice", "invalid_value"),  # 53
    (chat(tool_choice="required"), "tool_choice", "invalid_value"),
    (chat(tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice", "invalid_value"),
    (chat(function_call={"name": "f"}), "function_call", "invalid_value"),
    (chat(functions=[{"name": "a b"}]), "functions[0].name", "invalid_value"),
    (chat(functions=[{"name": "f"}], function_call={"name": "g"}), "function_call.name", "invalid_value"),
    (chat(tools=[4]), "tools[0]", "invalid_type"),
    (chat(tools=[{}]), "tools[0].type", "missing_required_parameter"),
    (chat(tools=[TOOL, {"type": "custom", "custom": {"name": "f"}}]), "tools[1].type", "unsupported_value"),
    (chat(tools=[{"type": "function"}]), "tools[0].function", "missing_required_parameter"),
    (chat(tools=[{"type": "function", "function": {}}]), "tools[0].function.name", "missing_required_parameter"),
    (chat(tools=[{"type": "function", "function": {"name": ""}}]), "tools[0].function.name", "invalid_value"),
    (chat(tools=[function(description=1)]), "tools[0].function.description", "invalid_type"),
    (chat(tools=[function(parameters=[])]), "tools[0].function.parameters", "invalid_type"),
    (chat(tools=[function(parameters={"type": "array"})]), "tools[0].function.parameters", "invalid_value"),
    (chat(tools=[function(strict=1)]), "tools[0].function.strict", "invalid_type"),
    (chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "ghost"}}),
     "tool_choice.function.name", "invalid_value"),
    (chat(tools=[TOOL], tool_choice={"type": "function", "function": {}}),
     "tool_choice.function.name", "missing_required_parameter"),
    (chat(tools=[TOOL], tool_choice={"type": "custom"}), "tool_choice.type", "invalid_value"),
    (chat(tools=[TOOL], tool_choice=3), "tool_choice", "invalid_type"),
    (chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "ghost"}}]}}), "tool_choice.allowed_tools", "invalid_value"),
    (chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "maybe", "tools": []}}),
     "tool_choice.allowed_tools.mode", "invalid_value"),
    (chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}),
     "tool_choice.allowed_tools.tools", "invalid_type"),
    (chat(tools=[TOOL], parallel_tool_calls="no"), "parallel_tool_calls", "invalid_type"),
    (chat(reasoning_effort="huge"), "reasoning_effort", "invalid_value"),
    (chat(reasoning_effort=1), "reasoning_effort", "invalid_type"),
    (chat(thinking_token_budget="x"), "thinking_token_budget", "invalid_type"),
    (chat(include_reasoning="x"), "include_reasoning", "invalid_type"),
    (chat(audio={"voice": "x", "format": "wav"}), "audio", "unsupported_parameter"),
    (chat(modalities=["text", "audio"]), "modalities", "unsupported_value"),
    (chat(modalities="text"), "modalities", "invalid_type"),
    (chat(web_search_options={}), "web_search_options", "unsupported_parameter"),
    (chat(prediction="x"), "prediction", "invalid_type"),
    (chat(prediction={"type": "text", "content": "x"}), "prediction", "invalid_value"),
    (chat(prediction={"content": "x"}), "prediction", "invalid_value"),
    (chat(prediction={"type": "content"}), "prediction", "invalid_type"),
    (chat(prediction={"type": "content", "content": 5}), "prediction", "invalid_type"),
    (chat(prediction={"type": "content", "content": ["x"]}), "prediction", "invalid_type"),
    (chat(prediction={"type": "content", "content": [{"type": "image_url"}]}), "prediction", "invalid_value"),
    (chat(prediction={"type": "content", "content": [{"type": "text", "text": 1}]}), "prediction", "invalid_type"),
    (chat(chat_template="{{ x }}"), "chat_template", "unsupported_parameter"),
    (chat(reasoning_effort=5), "reasoning_effort", "invalid_type"),
    (chat(chat_template_kwargs=[]), "chat_template_kwargs", "invalid_type"),
    (chat(continue_final_message=True, add_generation_prompt=True), "continue_final_message", "invalid_value"),
]

ONLY_COMP = [
    (comp(prompt=...), "prompt", "missing_required_parameter"),
    (comp(prompt={}), "prompt", "invalid_type"),
    (comp(prompt=[]), "prompt", "invalid_value"),
    (comp(prompt=[[]]), "prompt", "invalid_value"),
    (comp(prompt=["a", 5]), "prompt", "invalid_value"),
    (comp(prompt=["a", [5]]), "prompt", "invalid_value"),
    (comp(prompt=[5, "a"]), "prompt", "invalid_value"),
    (comp(prompt=[VOCAB]), "prompt", "invalid_value"),
    (comp(prompt=[-1]), "prompt", "invalid_value"),
    (comp(prompt=["a"] * 65), "prompt", "array_above_max_length"),
    (comp(prompt=["a"] * 3, n=100), "prompt", "array_above_max_length"),
    (comp(prompt=""), "prompt", "invalid_value"),
    (comp(prompt="z" * 1100000), "prompt", "context_length_exceeded"),
    (comp(max_tokens=0), "max_tokens", "integer_below_min_value"),
    (comp(logprobs=6), "logprobs", None),  # 44
    (comp(logprobs=True), "logprobs", "invalid_type"),
    (comp(n=2, best_of=1), "best_of", None),
    (comp(best_of=2, stream=True), "best_of", None),
    (comp(best_of=3), "best_of", "unsupported_value"),
    (comp(suffix="x"), "suffix", "unsupported_value"),
]

# The body as bytes: (body, param, code, part of the message)
RAW = [
    (b"", None, None, "JSON"),  # 1
    (b"{", None, None, "line 1"),  # 2
    (b'{"a":1,}', None, None, "line 1, column"),
    (b'{"a":1 /* x */}', None, None, "line 1, column"),
    (b'{"a":1}\n{"b":2}', None, None, "line 2, column"),
    (b'\xef\xbb\xbf{"a":1}', None, None, "line 1, column"),
    (b"[]", None, "invalid_type", "object"),  # 3
    (b'"x"', None, None, "JSON"),
    (b'{"model":"\xff"}', None, None, "JSON"),  # 4
    (b'{"model":"m","model":"m"}', "model", None, "Duplicate"),  # 5
    (json.dumps({"a": {"b": LONG}}).encode(), None, None, "deeper than 64"),  # 6
    (b"[" * 100000, None, None, "deeper than 64"),
    (b'{"model":"m","temperature":1e999}', "temperature", None, "temperature"),  # 7
    (b'{"model":"m","n":18446744073709551616}', "n", None, "for n"),
    (b'{"model":"m","messages":[{"role":"user"},{"x":{"y, \\" z":[0,[],1e999]}}]}', 'messages[1].x.y, \\" z[2]', None, ""),
    (b'{"a":[1,2],"b":{"c":3},"d":-1e999}', "d", None, ""),
    (b'{"model":"a\\u0000b"}', None, None, "\\u0000"),
    (b'{"model":"\\ud83d"}', None, None, "JSON"),
]


class Errors(unittest.TestCase):
    args = ()

    @classmethod
    def setUpClass(cls):
        cls.d = test_http.start(*cls.args)

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def check(self, got, status, param, code, kind="invalid_request_error", part=""):
        s, h, b = got
        self.assertEqual(s, status, b)
        self.assertRegex(h["content-type"], "^application/json")
        self.assertTrue(h["x-request-id"])
        body = json.loads(b)
        self.assertEqual(list(body), ["error"])
        e = body["error"]
        self.assertEqual(set(e), {"message", "type", "param", "code"})
        self.assertEqual((e["param"], e["code"]), (param, code), e)
        self.assertEqual(e["type"], kind)
        self.assertIn(part, e["message"])
        self.assertGreater(len(e["message"]), 10)
        self.assertIsNone(re.search(r"/tmp|\.c:|0x[0-9a-f]{6}", e["message"]), e)
        return e

    def refuse(self, path, body, param, code, **kw):
        with self.subTest(path=path, body=json.dumps(body)[:150]):
            return self.check(self.d.request("POST", path, body), 400, param, code, **kw)

    def test_raw_bodies(self):
        for path in (CHAT, COMP, "/tokenize"):
            for body, param, code, part in RAW:
                with self.subTest(path=path, body=body[:80]):
                    self.check(self.d.request("POST", path, body), 400, param, code, part=part)

    def test_fields_of_both(self):
        for kw, param, code in BOTH:
            self.refuse(CHAT, chat(**kw), param, code)
            self.refuse(COMP, comp(**kw), param, code)

    def test_chat(self):
        for body, param, code in ONLY_CHAT:
            self.refuse(CHAT, body, param, code)

    def test_completions(self):
        for body, param, code in ONLY_COMP:
            self.refuse(COMP, body, param, code)

    def test_streams_are_refused_alike(self):
        for kw, param, code in BOTH:
            if "stream" not in kw and "stream_options" not in kw:
                self.refuse(CHAT, chat(stream=True, **kw), param, code)

    def test_model_not_found(self):  # 24
        for name in ("x", "../x", "y" * 10240, "M", "m ", "é"):
            for path, body in ((CHAT, chat(model=name)), (COMP, comp(model=name)),
                               ("/tokenize", {"model": name, "prompt": "a"})):
                with self.subTest(path=path, name=name[:20]):
                    self.check(self.d.request("POST", path, body), 404, "model", "model_not_found")
        for name in ("x", "..%2Fx", "x/y"):
            with self.subTest(name=name):
                self.check(self.d.request("GET", f"/v1/models/{name}"), 404, "model", "model_not_found")

    def test_tokenize(self):
        for path, body, param, code in (
                ("/tokenize", {}, "prompt", "missing_required_parameter"),
                ("/tokenize", {"prompt": 5}, "prompt", "invalid_type"),
                ("/tokenize", {"prompt": "a", "add_special_tokens": 5}, "add_special_tokens", "invalid_value"),
                ("/tokenize", {"messages": []}, "messages", "empty_array"),
                ("/detokenize", {}, "tokens", "missing_required_parameter"),
                ("/detokenize", {"tokens": "a"}, "tokens", "invalid_type"),
                ("/detokenize", {"tokens": [VOCAB]}, "tokens", "invalid_value"),
                ("/detokenize", {"tokens": [1, "a"]}, "tokens", "invalid_value")):
            self.refuse(path, body, param, code)

    def test_content_type(self):  # 8
        for kind, ok in (("text/plain", False), ("application/x-www-form-urlencoded", False), ("", True),
                         ("application/json; charset=utf-8", True), ("Application/JSON", True)):
            got = self.d.request("POST", COMP, comp(), headers={"Content-Type": kind} if kind else {})
            with self.subTest(kind=kind):
                if ok:
                    self.assertEqual(got[0], 200, got[2])
                else:
                    self.check(got, 415, None, "unsupported_content_type")

    def test_paths(self):  # 17, 18, 20
        self.check(self.d.request("GET", "/v1/nope"), 404, None, None, part="GET /v1/nope")
        for method, path in (("GET", CHAT), ("DELETE", "/v1/models"), ("PUT", "/v1/models/m")):
            s, h, b = self.d.request(method, path)
            self.check((s, h, b), 405, None, "method_not_supported")
            self.assertTrue(h["allow"])
        self.assertEqual(self.d.request("POST", CHAT + "/", chat())[0], 200)
        self.assertIn(self.d.request("POST", "/v1//chat/completions", chat())[0], (200, 404))

    def accept(self, path, body):
        with self.subTest(path=path, body=json.dumps(body)[:150]):
            s, h, b = self.d.request("POST", path, body)
            self.assertEqual(s, 200, b)
            self.assertIsNone(h["x-stepd-warning"])
            return json.loads(b)

    def test_accepted(self):
        for kw in ({"temperature": 0}, {"temperature": 2}, {"top_p": 0}, {"top_p": 1}, {"n": 1.0}, {"seed": -5},
                   {"seed": 2**63 - 1}, {"stop": []}, {"stop": None}, {"stop": ["a"]}, {"logit_bias": {}},
                   {"logit_bias": {"5": -100}}, {"user": "u"}, {"top_k": -1}, {"top_k": 0}, {"min_p": 0},
                   {"response_format": {"type": "text"}}, {"stream_options": None}, {"min_tokens": 4},
                   {"max_tokens": None}, {"use_beam_search": False}, {"guided_json": None}):
            if kw != {"max_tokens": None}:
                self.accept(CHAT, chat(**kw))
            self.accept(COMP, comp(**kw))
        for kw in ({"metadata": {"a": "b"}}, {"store": True}, {"service_tier": "auto"}, {"safety_identifier": "x"},
                   {"prompt_cache_key": "x"}, {"prompt_cache_retention": "24h"}, {"modalities": ["text"]},
                   {"verbosity": "low"}, {"reasoning_effort": "low"}, {"tools": []}, {"tools": None},
                   {"tool_choice": "auto"}, {"tool_choice": "none"}, {"functions": []}, {"function_call": "auto"},
                   {"parallel_tool_calls": True}, {"audio": None}, {"web_search_options": None},
                   {"max_tokens": 4, "max_completion_tokens": 4}, {"logprobs": False}, {"top_logprobs": None},
                   {"logprobs": True, "top_logprobs": 20}):
            self.accept(CHAT, chat(**kw))
        for m in ({"content": [{"type": "text", "text": "hi"}]}, {"name": "a" * 64}, {"name": "é" * 64},
                  {"role": "assistant", "content": None, "refusal": "no"},
                  {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
                  {"role": "assistant", "function_call": {"name": "f", "arguments": "not json"}},
                  {"role": "developer"}, {"role": "tool", "tool_call_id": "x"}):
            self.accept(CHAT, msg(**m))
        for kw in ({"best_of": 1, "stream": False}, {"suffix": None}, {"suffix": ""}, {"logprobs": 5}, {"logprobs": 0},
                   {"max_tokens": 0, "echo": True}, {"prompt": [5]}, {"prompt": ["a", "b"]}, {"prompt": [[5], [6, 7]]}):
            self.accept(COMP, comp(**kw))

    def test_default_length_fits_context(self):
        self.assertEqual(self.accept(COMP, comp(max_tokens=...))["usage"]["completion_tokens"], 16)

    def test_unknown_field(self):  # 55
        s, h, b = self.d.request("POST", CHAT, chat(foo=1, bar=None, **{"x\r\nSet-Cookie: a": 1}))
        self.assertEqual(s, 200, b)
        self.assertEqual(h["x-stepd-warning"], "ignored unknown fields: foo, bar, x??Set-Cookie: a")
        self.assertIsNone(h["set-cookie"])


class Strict(Errors):
    args = ("--strict-fields", "yes")

    def test_unknown_field(self):
        self.refuse(CHAT, chat(foo=1), "foo", "unknown_parameter")
        self.refuse(COMP, comp(metadata={}), "metadata", "unknown_parameter")


class Greedy(unittest.TestCase):
    def test_choices_are_equal(self):  # 38; a model that computes
        with test_http.Daemon("--device", "cpu", "--ctx-size", "256", model=test_http.MODEL) as d:
            s, r = d.post(CHAT, chat(n=2, temperature=0, max_tokens=12))
            self.assertEqual(s, 200, r)
            self.assertEqual(r["choices"][0]["message"], r["choices"][1]["message"])
            s, r = d.post(CHAT, chat(n=2, temperature=2, max_tokens=12))
            self.assertNotEqual(r["choices"][0]["message"], r["choices"][1]["message"])


if __name__ == "__main__":
    unittest.main()
