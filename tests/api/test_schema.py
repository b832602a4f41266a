#!/usr/bin/env python3
"""Answers, streamed frames and errors against OpenAI's published schemas (tests/data/openai). A small model on the CPU.

The published schemas say less than the hosted API does in four places, which are widened here: a streamed frame has
`usage: null` before the last one when usage was asked for, a streamed completion has `finish_reason: null` before its
last frame, a prompt's first token has no log-probability, and no alternatives are listed for a token of 0 of them."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_http  # noqa: E402

from jsonschema import Draft202012Validator  # noqa: E402

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
with open(os.path.join(test_http.TOP, "tests/data/openai/schemas.json")) as f:
    SPEC = json.load(f)
SCHEMAS = SPEC["components"]["schemas"]


def nullable(v):
    """OpenAPI 3.0's nullable as JSON Schema."""
    if isinstance(v, list):
        return [nullable(x) for x in v]
    if not isinstance(v, dict):
        return v
    out = {k: nullable(x) for k, x in v.items() if k != "nullable"}
    return {"anyOf": [out, {"type": "null"}]} if v.get("nullable") is True else out


def widened():
    all_ = nullable(SCHEMAS)
    null = {"type": "null"}
    comp = all_["CreateCompletionResponse"]["properties"]
    comp["usage"] = {"anyOf": [comp["usage"], null]}
    choice = comp["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], null]}
    lp = choice["logprobs"]["anyOf"][0]["properties"]
    for key in ("token_logprobs", "top_logprobs"):
        lp[key]["items"] = {"anyOf": [lp[key]["items"], null]}
    return all_


ALL = widened()


def validator(name):
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": ALL}})


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = test_http.Daemon("--device", "cpu", "--ctx-size", "512", model=test_http.MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def valid(self, name, v):
        bad = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator(name).iter_errors(v)]
        self.assertEqual(bad, [], json.dumps(v)[:1000])

    def whole(self, path, name, **kw):
        with self.subTest(path=path, **kw):
            s, v = self.d.post(path, {"model": "m", "max_tokens": 6, "ignore_eos": True, **kw})
            self.assertEqual(s, 200, v)
            self.valid(name, v)
            self.assertEqual([c["index"] for c in v["choices"]], list(range(len(v["choices"]))))
            u = v["usage"]
            self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
            return v

    def frames(self, path, name, **kw):
        with self.subTest(path=path, stream=True, **kw):
            data = self.d.stream(path, {"model": "m", "max_tokens": 6, "ignore_eos": True, **kw})
            self.assertEqual(data[-1], "[DONE]")
            frames = [json.loads(x) for x in data[:-1]]
            for v in frames:
                self.valid(name, v)
                for key in ("id", "created", "model", "object"):
                    self.assertEqual(v[key], frames[0][key])
            asked = kw.get("stream_options", {}).get("include_usage")
            self.assertEqual(["usage" in v for v in frames], [bool(asked)] * len(frames))
            if asked:
                self.assertEqual([v["usage"] is not None for v in frames], [False] * (len(frames) - 1) + [True])
                self.assertEqual(frames[-1]["choices"], [])
            return frames

    # A sampled answer that began with the end of a thought would lose that mark, and a log-probability with it.
    END = "</think>"

    def chat(self, **kw):
        return {"messages": MESSAGES, "logit_bias": {str(self.token(self.END)): -100}, **kw}

    def token(self, text):
        s, v = self.d.post("/tokenize", {"model": "m", "prompt": text, "add_special_tokens": False})
        self.assertEqual((s, v["count"]), (200, 1), v)
        return v["tokens"][0]

    def test_end_of_thought(self):
        v = self.whole(CHAT, "CreateChatCompletionResponse", messages=MESSAGES, logprobs=True,
                       logit_bias={str(self.token(self.END)): 100})
        c = v["choices"][0]
        self.assertEqual(c["message"]["content"], self.END * 5)
        self.assertEqual(len(c["logprobs"]["content"]), 5)
        self.assertEqual(v["usage"]["completion_tokens"], 6)

    CHATS = ({}, {"n": 3, "temperature": 1.5}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 4, "n": 2},
             {"stop": ["e"]}, {"max_completion_tokens": 2, "max_tokens": None})

    def test_chat(self):
        for kw in self.CHATS:
            v = self.whole(CHAT, "CreateChatCompletionResponse", **self.chat(**kw))
            if kw.get("logprobs"):
                for c in v["choices"]:
                    self.assertEqual(len(c["logprobs"]["content"]), 6)
                    for t in c["logprobs"]["content"]:
                        self.assertEqual(len(t["top_logprobs"]), kw.get("top_logprobs", 0))

    def test_chat_stream(self):
        for kw in self.CHATS:
            for more in ({}, {"stream_options": {"include_usage": True}}):
                fr = self.frames(CHAT, "CreateChatCompletionStreamResponse", **self.chat(**kw, **more))
                n = kw.get("n", 1)
                ends = [c["index"] for v in fr for c in v["choices"] if c["finish_reason"]]
                self.assertEqual(sorted(ends), list(range(n)))
                first = {}
                for v in fr:
                    for c in v["choices"]:
                        first.setdefault(c["index"], c["delta"])
                self.assertEqual([first[i].get("role") for i in range(n)], ["assistant"] * n)

    COMPS = ({}, {"n": 3, "temperature": 1.5}, {"logprobs": 0}, {"logprobs": 5, "n": 2}, {"echo": True},
             {"echo": True, "logprobs": 2}, {"echo": True, "logprobs": 0, "max_tokens": 0}, {"prompt": ["a", "bc"]},
             {"prompt": [[5, 6], [200]], "echo": True, "logprobs": 1})

    def test_completions(self):
        for kw in self.COMPS:
            v = self.whole(COMP, "CreateCompletionResponse", **{"prompt": "hi you", **kw})
            for c in v["choices"]:
                lp = c["logprobs"]
                self.assertEqual(lp is None, "logprobs" not in kw)
                if lp:
                    self.assertEqual("".join(lp["tokens"]), c["text"])
                    self.assertEqual(len({len(lp[k]) for k in lp}), 1, lp)
                    at = 0
                    for t, off in zip(lp["tokens"], lp["text_offset"]):
                        self.assertEqual(off, at)
                        at += len(t)

    def test_completions_stream(self):
        for kw in self.COMPS:
            for more in ({}, {"stream_options": {"include_usage": True}}):
                self.frames(COMP, "CreateCompletionResponse", **{"prompt": "hi you", **kw}, **more)

    def test_models(self):
        s, v = self.d.get("/v1/models")
        self.assertEqual(s, 200)
        self.valid("ListModelsResponse", v)
        s, one = self.d.get("/v1/models/m")
        self.assertEqual(s, 200)
        self.valid("Model", one)
        self.assertEqual(v["data"], [one])

    def test_errors(self):
        for path, body in ((CHAT, {}), (CHAT, {"model": "x", "messages": MESSAGES}), (COMP, {"model": "m", "prompt": 5}),
                           (COMP, {"model": "m", "prompt": "a", "n": 0}), ("/nope", {})):
            s, v = self.d.post(path, body)
            self.assertGreaterEqual(s, 400)
            self.valid("Error", v["error"])

    def test_every_request_field_is_known(self):
        for path, base, name in ((CHAT, {"model": "m", "messages": MESSAGES}, "CreateChatCompletionRequest"),
                                 (COMP, {"model": "m", "prompt": "a"}, "CreateCompletionRequest")):
            self.assertGreater(len(SPEC["request_fields"][name]), 15)
            body = {**{k: None for k in SPEC["request_fields"][name]}, **base, "max_tokens": 2}
            s, h, b = self.d.request("POST", path, body)
            self.assertEqual(s, 200, b)
            self.assertIsNone(h["x-stepd-warning"])

    def test_the_schemas_refuse(self):
        """The validators are not blind."""
        v = self.whole(CHAT, "CreateChatCompletionResponse", messages=MESSAGES)
        self.valid("CreateChatCompletionResponse", v)
        for change in ({"object": "x"}, {"choices": None}, {"created": "now"}, {"usage": {"prompt_tokens": "1"}}):
            self.assertTrue(list(validator("CreateChatCompletionResponse").iter_errors({**v, **change})), change)


if __name__ == "__main__":
    unittest.main()
