#!/usr/bin/env python3
"""Conversations with tool calls through the real daemon under published chat templates that make it hard: those that build
lists, take tools as a text, or have formats of their own. The null device: prompts are judged, not answers."""
import json
import lzma
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import TOP, Daemon, tiny_model  # noqa: E402

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}, "required": ["city"]}}}
TURNS = [{"role": "user", "content": "Weather in Bern?"},
         {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {
             "name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}]},
         {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}]
# Template -> what its prompt must have: the call, and the result.
PROMPTS = {
    "Kimi-K2-Instruct": ("<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>", "## Return of functions.get_weather:0\n21 degrees"),
    "Kimi-K2-Thinking": ("<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>", "## Return of functions.get_weather:0\n21 degrees"),
    "Kimi-K3": ("<|open|>argument key=\"city\" type=\"string\"<|sep|>Bern<|close|>argument<|sep|>", "21 degrees"),
    "MiniMax-M3": ("]<]minimax[>[<city>Bern]<]minimax[>[</city>", "<response>21 degrees</response>"),
    "meetkai-functionary-medium-v3.2": (">>>get_weather\n{\"city\": \"Bern\"}", "21 degrees"),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("\"tool_name\": \"get_weather\"", "<results>\n21 degrees</results>"),
    "fireworks-ai-llama-3-firefunction-v2": ("functools[{\"name\": \"get_weather\", \"arguments\":", "Available functions as JSON spec:\n[\n    {\n        \"name\": \"get_weather\""),
    "llama-cpp-deepseek-r1": ("<｜tool▁sep｜>get_weather\n```json\n", "21 degrees"),
    "vllm-tool_chat_template_hunyuan_a13b": ("<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}]</tool_calls>", "21 degrees"),
    "vllm-tool_chat_template_llama4_pythonic": ("[get_weather(city=\"Bern\")]", "21 degrees"),
}


class Templates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with lzma.open(os.path.join(TOP, "tests/data/chat-templates/chat-templates.json.xz")) as f:
            cls.source = {t["name"]: t["source"] for t in json.load(f)["templates"]}

    def test_replayed_calls(self):
        for name, parts in PROMPTS.items():
            with self.subTest(name), tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as f:
                f.write(self.source[name])
                f.flush()
                with Daemon("--device", "null", "--chat-template", f.name, model=tiny_model()) as d:
                    body = {"model": "m", "messages": TURNS, "tools": [TOOL]}
                    s, v = d.post("/v1/chat/completions", {**body, "max_tokens": 2})
                    self.assertEqual(s, 200, v)
                    s, v = d.post("/tokenize", body)
                    self.assertEqual(s, 200, v)
                    s, v = d.post("/detokenize", {"model": "m", "tokens": v["tokens"], "skip_special_tokens": False})
                    text = v.get("prompt") or v.get("content")
                    for part in parts:
                        self.assertIn(part, text)
                    # Without tools, and a forced call.
                    s, v = d.post("/v1/chat/completions", {"model": "m", "messages": TURNS[:1], "max_tokens": 2})
                    self.assertEqual(s, 200, v)
                    s, v = d.post("/v1/chat/completions", {**body, "max_tokens": 400, "tool_choice": "required"})
                    self.assertEqual(s, 200, v)
                    m = v["choices"][0]["message"]
                    if v["choices"][0]["finish_reason"] == "tool_calls":
                        self.assertEqual(m["tool_calls"][0]["function"]["name"], "get_weather")
                        self.assertEqual(list(json.loads(m["tool_calls"][0]["function"]["arguments"])), ["city"])


if __name__ == "__main__":
    unittest.main()
