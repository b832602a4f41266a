#!/usr/bin/env python3
"""Writes outputs.json: what models of each family write, as their templates and their makers' descriptions show it, and what
it means."""
import json
import os

def tool(name, text, **props):
    required = props.pop("required", [])
    return {"type": "function", "function": {"name": name, "description": text, "parameters": {
        "type": "object", "properties": props, "required": required}}}

S, I, N = {"type": "string"}, {"type": "integer"}, {"type": "number"}
TOOLS = [
    tool("get_weather", "Weather of a city.", city=S, unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
         required=["city"]),
    tool("search_docs", "Full-text search.", query=S, k=I, threshold=N,
         filters={"type": "object", "properties": {"lang": {"type": ["string", "null"]}, "tags": {"type": "array"},
                                                   "exact": {"type": "boolean"}}},
         tags={"type": "array", "items": S}, note={"anyOf": [S, {"type": "null"}]}, required=["query"]),
    tool("now", "The time."),
]
THINK = ["<think>", "</think>"]
CASES = []
PARIS = {"city": "Paris"}
DOCS = {"query": "Øslo \"wx\"", "k": 3, "threshold": 0.5, "filters": {"lang": None, "tags": ["a", "b"], "exact": True}}

def case(family, what, text, calls=(), content="", reasoning="", think=None, opened=False, max_calls=0):
    want = {}
    if content:
        want["text"] = content
    if reasoning:
        want["reasoning"] = reasoning
    if calls:
        want["calls"] = [c if isinstance(c, dict) else {"name": c[0], ("args" if isinstance(c[1], str) else "json"): c[1]}
                         for c in calls]
    c = {"family": family, "what": what, "text": text, "want": want}
    if think:
        c["think"] = think
    if opened:
        c["opened"] = True
    if max_calls:
        c["max_calls"] = max_calls
    CASES.append(c)

def dumps(v):
    return json.dumps(v, ensure_ascii=False)

def call(name, args, key="arguments"):
    return dumps({"name": name, key: args})

BOTH = [("get_weather", PARIS), ("search_docs", DOCS)]

# ---- no family ----
case(None, "text", "Hello <tool_call> {\"name\": \"f\"} \n", content="Hello <tool_call> {\"name\": \"f\"} \n")
case(None, "reasoning", "<think>\nLet me see.\n\n</think>\n\nParis.\n", content="Paris.\n", reasoning="Let me see.", think=THINK)
case(None, "reasoning opened by the prompt", "Let me < see.\n</think>\nParis. <think>no</think>",
     content="Paris. <think>no</think>", reasoning="Let me < see.", think=THINK, opened=True)
case(None, "opened twice", "<think>\nHm.</think>Yes", content="Yes", reasoning="Hm.", think=THINK, opened=True)
case(None, "reasoning that never ends", "<think>Well, </thin", reasoning="Well, </thin", think=THINK)
case(None, "stray end mark", "\n</think>\n\nParis.", content="Paris.", think=THINK)
case(None, "no reasoning", " <thinker> is a word", content=" <thinker> is a word", think=THINK)
case(None, "empty reasoning", "<think>\n\n</think>\n\nOK", content="OK", think=THINK)

# ---- Hermes, Qwen ----
case("hermes", "one call", "<tool_call>\n" + call("get_weather", PARIS) + "\n</tool_call>", [("get_weather", dumps(PARIS))])
case("hermes", "text and two calls", "I will look both up.\n<tool_call>\n" + call("get_weather", PARIS) +
     "\n</tool_call>\n<tool_call>\n" + call("search_docs", DOCS) + "\n</tool_call>", BOTH, content="I will look both up.")
case("hermes", "reasoning, then a call", "<think>\nI need <tool_call> the tool.\n</think>\n\n<tool_call>\n" +
     call("now", {}) + "\n</tool_call>", [("now", "{}")], reasoning="I need <tool_call> the tool.", think=THINK)
case("hermes", "text after a call", "<tool_call>" + call("now", {}) + "</tool_call>\n\nDone. ", [("now", "{}")], content="Done. ")
case("hermes", "text on both sides", "A \n<tool_call>" + call("now", {}) + "</tool_call>\nB", [("now", "{}")], content="A\nB")
case("hermes", "arguments first", "<tool_call>{\"arguments\": {\"city\": \"}<\\\"{\"}, \"name\": \"get_weather\"}</tool_call>",
     [("get_weather", {"city": "}<\"{"})])
case("hermes", "arguments in a string", "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Bern\\\"}\"}</tool_call>",
     [("get_weather", {"city": "Bern"})])
case("hermes", "no arguments", "<tool_call>{\"name\": \"now\"}</tool_call>", [("now", "{}")])
case("hermes", "null arguments", "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>", [("now", "{}")])
case("hermes", "more keys", "<tool_call>{\"id\": \"call_x1\", \"type\": \"function\", \"name\": \"now\", \"arguments\": {}, \"z\": [1, {\"a\": 2}]}</tool_call>",
     [{"name": "now", "args": "{}", "id": "call_x1", "ended": True}])
case("hermes", "escaped name", "<tool_call>{\"name\": \"get\\u005fweather\", \"arguments\": {\"city\": \"Z\\u00fcrich\\n\"}}</tool_call>",
     [("get_weather", {"city": "Zürich\n"})])
case("hermes", "a bracket too few", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}\n</tool_call> ok", [("now", "{}")], content="ok")
case("hermes", "two objects in one pair of marks", "<tool_call>\n" + call("now", {}) + "\n" + call("get_weather", PARIS) + "\n</tool_call>",
     [("now", "{}"), ("get_weather", PARIS)])
case("hermes", "only the first", "<tool_call>" + call("get_weather", PARIS) + "</tool_call><tool_call>" + call("now", {}) + "</tool_call>",
     [("get_weather", PARIS)], max_calls=1)
case("hermes", "no call at all", "Use <tool_call> like <tool_call>{\"a\": 1}</tool_call>.",
     content="Use <tool_call> like <tool_call>{\"a\": 1}</tool_call>.")
case("hermes", "broken off in the name", "Hm <tool_call>\n{\"name\": \"get_we", content="Hm <tool_call>\n{\"name\": \"get_we")
case("hermes", "broken off in the arguments", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa",
     [{"name": "get_weather", "args": "{\"city\": \"Pa", "ended": True}])
case("hermes", "broken off in the end mark", "<tool_call>" + call("now", {}) + "\n</tool_", [("now", "{}")])
case("hermes", "a mark cut off", "Hello <tool_cal", content="Hello <tool_cal")
case("hermes", "not JSON", "<tool_call>get_weather(Paris)</tool_call>", content="<tool_call>get_weather(Paris)</tool_call>")
case("hermes", "unended string", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris}}\n</tool_call>",
     [{"name": "get_weather", "args": "{\"city\": \"Paris}}\n</tool_call>", "ended": True}])
case("hermes", "arguments without an end", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1</tool_call>",
     [{"name": "now", "args": "{\"a\": 1", "ended": True}])
case("hermes", "white space only", " \n ", content=" \n ")

# ---- lists in marks ----
for fam, a, b in (("nemotron", "<TOOLCALL>", "</TOOLCALL>"), ("tool_calls", "<tool_calls>", "</tool_calls>"),
                  ("granite", "<|tool_call|>", ""), ("functools", "functools", ""), ("mistral", "[TOOL_CALLS]", "")):
    case(fam, "a list", "Both.\n" + a + "[" + call("get_weather", PARIS) + ", " + call("search_docs", DOCS) + "]" + b + "\n",
         BOTH, content="Both.")
    case(fam, "broken off in the second", a + "[" + call("get_weather", PARIS) + ", {\"name\": \"sea",
         [("get_weather", PARIS)], content=", {\"name\": \"sea")
case("tool_calls", "lines", "<tool_calls>\n" + call("get_weather", PARIS) + "\n" + call("search_docs", DOCS) + "\n</tool_calls>", BOTH)
case("granite", "pretty", "<|tool_call|>" + json.dumps([{"name": "search_docs", "arguments": DOCS}], indent=4, ensure_ascii=False),
     [("search_docs", DOCS)])
case("granite_fc", "two", "\n<function_call> " + call("get_weather", PARIS) + "\n<function_call> " + call("search_docs", DOCS) + "\n", BOTH)
case("gigachat", "one", "I will.<|function_call|>" + call("get_weather", PARIS), [("get_weather", PARIS)], content="I will.")
case("command", "actions", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}},\n"
     "    {\"tool_call_id\": \"1\", \"tool_name\": \"search_docs\", \"parameters\": " + dumps(DOCS) + "}\n]<|END_ACTION|>", BOTH)
case("command", "reasoning", "<|START_THINKING|>Hm.<|END_THINKING|>Paris.", content="Paris.", reasoning="Hm.",
     think=["<|START_THINKING|>", "<|END_THINKING|>"])
case("internlm", "two", "I will.<|action_start|><|plugin|>\n" + call("get_weather", PARIS) + "<|action_end|><|action_start|><|plugin|>\n" +
     call("search_docs", DOCS, "parameters") + "<|action_end|>", BOTH, content="I will.")
case("apertus", "keyed", "I will.<|tools_prefix|>[{\"get_weather\": {\"city\": \"Paris\"}}, {\"search_docs\": " + dumps(DOCS) + "}]<|tools_suffix|>",
     BOTH, content="I will.")
case("mistral", "ids", "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"abcdef123\"}]", [("get_weather", PARIS)])

# ---- Llama 3 ----
case("llama", "bare", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", [("get_weather", PARIS)])
case("llama", "with its tag", "<|python_tag|>{\"type\": \"function\", \"name\": \"search_docs\", \"parameters\": " + dumps(DOCS) + "}",
     [("search_docs", DOCS)])
case("llama", "several", call("get_weather", PARIS, "parameters") + "; " + call("search_docs", DOCS, "parameters"), BOTH)
case("llama", "an unknown function", "{\"name\": \"ghost\", \"parameters\": {}}", content="{\"name\": \"ghost\", \"parameters\": {}}")
case("llama", "an answer in JSON", " {\"city\": {\"name\": \"Paris\"}} ", content=" {\"city\": {\"name\": \"Paris\"}} ")
case("llama", "braces later", "Set {\"name\": \"now\"}", content="Set {\"name\": \"now\"}")
case("xlam", "a list", "[" + call("get_weather", PARIS) + ", " + call("search_docs", DOCS) + "]", BOTH)
case("xlam", "an answer in a list", "[1, 2]", content="[1, 2]")
case("xlam", "an empty list", "[]", content="[]")

#FAMILIES

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "outputs.json"), "w", encoding="utf-8") as f:
    f.write("{\"tools\": " + dumps(TOOLS) + ",\n\"cases\": [\n" + ",\n".join(dumps(c) for c in CASES) + "\n]}\n")
