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
case("hermes", "without its mark", "\n" + call("get_weather", PARIS), [("get_weather", dumps(PARIS))])
case("hermes", "two without marks", call("get_weather", PARIS) + "\n" + call("now", {}), [("get_weather", dumps(PARIS)), ("now", "{}")])
case("hermes", "an unknown function without its mark", call("ghost", {}), content=call("ghost", {}))
case("hermes", "an answer in JSON", " {\"city\": {\"name\": \"Paris\"}} ", content=" {\"city\": {\"name\": \"Paris\"}} ")
case("hermes", "a brace after text", "It is " + call("now", {}), content="It is " + call("now", {}))
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


# ---- names outside of arguments ----
case("mistral", "new form", "I will.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]search_docs[ARGS]" + dumps(DOCS), BOTH,
     content="I will.")
case("mistral", "with an id", "[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{\"city\": \"Paris\"}",
     [{"name": "get_weather", "json": PARIS, "id": "abcDEF123", "ended": True}])
case("mistral", "without the inner mark", "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}", [("get_weather", PARIS)])
case("mistral", "reasoning", "[THINK]Hm. [TOOL_CALLS][/THINK]Paris", content="Paris", reasoning="Hm. [TOOL_CALLS]",
     think=["[THINK]", "[/THINK]"])
case("mistral", "no call", "[TOOL_CALLS] is a mark, said he.", content="[TOOL_CALLS] is a mark, said he.")
DS = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
case("deepseek", "V3", "I will." + DS[0] + DS[1] + "function" + DS[2] + "get_weather\n```json\n{\"city\": \"Paris\"}\n```" + DS[3] + "\n" +
     DS[1] + "function" + DS[2] + "search_docs\n```json\n" + dumps(DOCS) + "\n```" + DS[3] + DS[4], BOTH, content="I will.")
case("deepseek", "V3.1", DS[0] + DS[1] + "get_weather" + DS[2] + "{\"city\": \"Paris\"}" + DS[3] + DS[1] + "search_docs" + DS[2] +
     dumps(DOCS) + DS[3] + DS[4], BOTH)
case("deepseek", "V3.1 without the outer mark", DS[1] + "now" + DS[2] + "{}" + DS[3], [("now", "{}")])
case("deepseek", "reasoning", "Hm.</think>" + DS[0] + DS[1] + "now" + DS[2] + "{}" + DS[3] + DS[4], [("now", "{}")], reasoning="Hm.",
     think=THINK, opened=True)
case("deepseek", "broken off", "A" + DS[0] + DS[1] + "get_wea", content="A" + DS[0] + DS[1] + "get_wea")
KI = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"]
case("kimi", "two", "I will." + KI[0] + KI[1] + "functions.get_weather:0" + KI[2] + "{\"city\": \"Paris\"}" + KI[3] + KI[1] +
     " functions.search_docs:1 " + KI[2] + " " + dumps(DOCS) + KI[3] + KI[4],
     [{"name": "get_weather", "json": PARIS, "id": "functions.get_weather:0", "ended": True},
      {"name": "search_docs", "json": DOCS, "id": "functions.search_docs:1", "ended": True}], content="I will.")
case("kimi", "the same id twice", KI[0] + KI[1] + "functions.now:0" + KI[2] + "{}" + KI[3] + KI[1] + "functions.now:0" + KI[2] + "{}" + KI[3] + KI[4],
     [{"name": "now", "args": "{}", "id": "functions.now:0", "ended": True}, ("now", "{}")])
case("kimi", "a bare name", KI[0] + KI[1] + "now" + KI[2] + "{}" + KI[3] + KI[4], [("now", "{}")])
case("solar", "two", "<|tool_calls|><|tool_call:begin|>call_00001<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Paris\"}<|tool_call:end|>"
     "<|tool_call:begin|>call_00002<|tool_call:name|>search_docs<|tool_call:args|>" + dumps(DOCS) + "<|tool_call:end|>",
     [{"name": "get_weather", "json": PARIS, "id": "call_00001", "ended": True}, ("search_docs", DOCS)])
case("functionary", "two", "Hm. <function=get_weather>{\"city\": \"Paris\"}</function>\n<function=search_docs>" + dumps(DOCS) + "</function>", BOTH,
     content="Hm.")

# ---- tags ----
def params(args, a, b, c, nl=""):
    return nl.join(a + k + b + nl + (v if isinstance(v, str) else dumps(v)) + nl + c for k, v in args.items())

def coder(name, args, nl="\n"):
    return "<function=" + name + ">" + nl + params(args, "<parameter=", ">", "</parameter>", nl) + nl + "</function>"

case("qwen_coder", "two", "I will.\n\n<tool_call>\n" + coder("get_weather", PARIS) + "\n</tool_call>\n<tool_call>\n" + coder("search_docs", DOCS) +
     "\n</tool_call>", BOTH, content="I will.")
case("qwen_coder", "without the outer mark", coder("get_weather", PARIS) + "\n</tool_call>", [("get_weather", PARIS)], content="</tool_call>")
case("qwen_coder", "several lines, quotes, tags", "<tool_call>\n" + coder("get_weather", {"city": "\n\"a\\b\"\n</param>\n\tc\n\n"}) + "\n</tool_call>",
     [("get_weather", {"city": "\n\"a\\b\"\n</param>\n\tc\n\n"})])
case("qwen_coder", "types", "<tool_call>" + coder("search_docs", {"query": "5", "k": "7", "threshold": "high", "filters": "{'exact': True, 'lang': None}",
     "tags": "[]", "note": "null"}) + "</tool_call>",
     [("search_docs", {"query": "5", "k": 7, "threshold": "high", "filters": {"exact": True, "lang": None}, "tags": [], "note": None})])
case("qwen_coder", "no arguments", "<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", "{}")])
case("qwen_coder", "an unknown function", "<tool_call>\n" + coder("ghost", {"a": 1, "b": "x y"}) + "\n</tool_call>", [("ghost", {"a": 1, "b": "x y"})])
case("qwen_coder", "the end of the function is missing", "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
     [("get_weather", PARIS)])
case("qwen_coder", "broken off in a value", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
     [{"name": "get_weather", "args": "{\"city\": \"Par", "ended": True}])
case("qwen_coder", "broken off in the name", "<tool_call>\n<function=get_w", content="<tool_call>\n<function=get_w")
case("qwen_coder", "reasoning", "Hm.\n</think>\n\n<tool_call>\n" + coder("now", {}) + "\n</tool_call>", [("now", "{}")], reasoning="Hm.", think=THINK, opened=True)
case("seed", "two", "I will.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>\n"
     "<seed:tool_call>\n<function=search_docs>\n" + params(DOCS, "<parameter=", ">", "</parameter>\n") + "</function>\n</seed:tool_call>", BOTH, content="I will.")
def invoke(name, args, t=""):
    return "<%sinvoke name=\"%s\">\n%s\n</%sinvoke>\n" % (t, name, params(args, "<%sparameter name=\"" % t, "\">", "</%sparameter>\n" % t), t)
case("minimax", "two", "I will.\n<minimax:tool_call>\n" + invoke("get_weather", PARIS) + invoke("search_docs", DOCS) + "</minimax:tool_call>", BOTH, content="I will.")
case("minimax", "broken off", "<minimax:tool_call>\n" + invoke("get_weather", PARIS) + "</minimax:", [("get_weather", PARIS)])
case("muse", "one", "<atem:function_calls>\n" + invoke("search_docs", DOCS, "atem:") + "</atem:function_calls>", [("search_docs", DOCS)])
def dsml(name, args):
    return "<｜DSML｜invoke name=\"%s\">\n%s</｜DSML｜invoke>\n" % (name, "".join("<｜DSML｜parameter name=\"%s\" string=\"%s\">%s</｜DSML｜parameter>\n" % (
        k, "true" if isinstance(v, str) else "false", v if isinstance(v, str) else dumps(v)) for k, v in args.items()))
case("dsml", "two", "I will.\n\n<｜DSML｜function_calls>\n" + dsml("get_weather", PARIS) + dsml("search_docs", DOCS) + "</｜DSML｜function_calls>", BOTH, content="I will.")
case("dsml4", "text that looks like a number", "<｜DSML｜tool_calls>\n" + dsml("ghost", {"a": "5", "b": 5}) + "</｜DSML｜tool_calls>", [("ghost", {"a": "5", "b": 5})])
def glm(name, args, nl="\n"):
    return "<tool_call>" + name + nl + nl.join("<arg_key>%s</arg_key>%s<arg_value>%s</arg_value>" % (k, nl, v if isinstance(v, str) else dumps(v))
                                               for k, v in args.items()) + nl + "</tool_call>"
case("glm", "4.5", "I will.\n" + glm("get_weather", PARIS) + "\n" + glm("search_docs", DOCS), BOTH, content="I will.")
case("glm", "4.7", "I will." + glm("get_weather", PARIS, "") + glm("search_docs", DOCS, ""), BOTH, content="I will.")
case("glm", "no arguments", "<tool_call>now\n</tool_call><tool_call>now</tool_call>", [("now", "{}"), ("now", "{}")])
case("glm", "no call", "<tool_call>{\"name\": \"now\"}</tool_call>", content="<tool_call>{\"name\": \"now\"}</tool_call>")
case("hunyuan", "two", "I will.<tool_calls:opensource>\n" + "\n".join("<tool_call:opensource>%s<tool_sep:opensource>\n%s\n</tool_call:opensource>" % (
     n, "\n".join("<arg_key:opensource>%s</arg_key:opensource>\n<arg_value:opensource>%s</arg_value:opensource>" % (k, v if isinstance(v, str) else dumps(v))
     for k, v in a.items())) for n, a in BOTH) + "\n</tool_calls:opensource>", BOTH, content="I will.")
case("minicpm", "two", "I will.\n<function name=\"get_weather\"><param name=\"city\">Paris</param></function>\n<function name=\"search_docs\">" +
     params(DOCS, "<param name=\"", "\">", "</param>") + "</function>", BOTH, content="I will.")

# ---- Python ----
PY = "[get_weather(city=\"Paris\"), search_docs(query='Øslo \"wx\"', k=3, threshold=0.5, filters={'lang': None, \"tags\": ['a', \"b\"], 'exact': True})]"
case("python", "two", PY, BOTH)
case("python", "no quotes", "[get_weather(city=New York)]", [("get_weather", {"city": "New York"})])
case("python", "escapes", "[get_weather(city='It\\'s\\n\\u00fc\\x41, )', unit=\"\")]", [("get_weather", {"city": "It's\nüA, )", "unit": ""})])
case("python", "no arguments", "[now()]\n", [("now", "{}")])
case("python", "an unknown function", "[ghost(a=1)]", content="[ghost(a=1)]")
case("python", "a list", "[1, 2, 3] is a list", content="[1, 2, 3] is a list")
case("python", "broken off", "[get_weather(city=\"Pa", [{"name": "get_weather", "args": "", "ended": True}])
case("python", "a zero in a value", "[get_weather(city=\0 ,unit=)]", [("get_weather", {"city": "\0 ", "unit": ""})])
case("lfm", "two", "I will.<|tool_call_start|>" + PY + "<|tool_call_end|>Wait.", BOTH, content="I will.Wait.")
case("llama", "Python after the tag", "<|python_tag|>get_weather.call(city=\"Paris\")", [("get_weather", PARIS)])
case("llama", "code after the tag", "<|python_tag|>print(1)", content="<|python_tag|>print(1)")

# ---- Gemma ----
case("gemma_function", "two", "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call><start_function_call>"
     "call:search_docs{query:<escape>Øslo \"wx\"<escape>,k:<escape>3<escape>,threshold:0.5,filters:{exact:true,lang:null,tags:[<escape>a<escape>,<escape>b<escape>]}}"
     "<end_function_call>", BOTH)
case("gemma4", "two", "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|><|tool_call>call:search_docs{filters:{exact:true,lang:null,"
     "tags:[<|\"|>a<|\"|>,<|\"|>b<|\"|>]},k:3,query:<|\"|>Øslo \"wx\"<|\"|>,threshold:0.5}<tool_call|>", BOTH)
case("gemma4", "brackets and apostrophes in a text", "<|tool_call>call:get_weather{city:<|\"|>it's}, <x>\n<|\"|>}<tool_call|>", [("get_weather", {"city": "it's}, <x>\n"})])
case("gemma4", "no arguments, then text", "<|tool_call>call:now{}<tool_call|>\nDone", [("now", "{}")], content="Done")
case("gemma4", "reasoning", "<|channel>thought\nHm.\n<channel|>Paris", content="Paris", reasoning="Hm.", think=["<|channel>thought\n", "<channel|>"])
case("gemma4", "broken off", "<|tool_call>call:get_weather{city:<|\"|>Pa", [{"name": "get_weather", "args": "", "ended": True}])

# ---- harmony ----
case("harmony", "answer", "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant<|channel|>final<|message|>Paris.\n", content="Paris.\n", reasoning="Hm.\n")
case("harmony", "call", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
     "{\"city\": \"Paris\"}", [("get_weather", dumps(PARIS))], reasoning="Hm.")
case("harmony", "recipient first, preamble, two calls", "<|channel|>commentary<|message|>I will.<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary json"
     "<|message|>{\"city\": \"Paris\"}<|call|><|start|>assistant<|channel|>commentary to=functions.search_docs<|message|>" + dumps(DOCS) + "<|call|>", BOTH, content="I will.")
case("harmony", "no arguments", "<|channel|>commentary to=functions.now<|message|><|call|>", [("now", "{}")])
case("harmony", "a tool of its own", "<|channel|>analysis to=python code<|message|>print(1)<|call|>", reasoning="print(1)")
case("harmony", "not in the format", "Paris. <|message|>", content="Paris. <|message|>")
case("harmony", "header broken off", "<|channel|>fin", content="")
case("harmony", "missing end mark", "<|channel|>analysis<|message|>A<|channel|>final<|message|>B", content="B", reasoning="A")

# ---- Functionary 3.2 ----
case("recipient", "text and two calls", "all\nI will.\n>>>get_weather\n" + dumps(PARIS) + ">>>search_docs\n" + dumps(DOCS), BOTH, content="I will.\n")
case("recipient", "a call, with the prompt's mark again", ">>>get_weather\n" + dumps(PARIS) + "\n", [("get_weather", dumps(PARIS))])
case("recipient", "text alone", "all\nHello", content="Hello")
case("recipient", "no recipient", "Hello >>> you\n>>>ghost\n{}", content="Hello >>> you\n>>>ghost\n{}")
case("recipient", "a call, then text for all", "now\n{}\n>>>all\nDone.", [("now", "{}")], content="Done.")
case("recipient", "no arguments", "now\n>>>all\nIt is >>> late", [("now", "{}")], content="It is >>> late")
case("recipient", "text right after a call", "now\n{} Well", [("now", "{}")], content="Well")
case("recipient", "broken off", "get_weather\n{\"city\": \"Pa", [{"name": "get_weather", "args": "{\"city\": \"Pa", "ended": True}])
case("recipient", "a name that is not over", "get_wea", content="get_wea")
case("recipient", "only a mark", ">>>", content=">>>")

# ---- Command R+ ----
def actions(*calls):
    return "[\n" + ",\n".join("    {\n        \"tool_name\": \"%s\",\n        \"parameters\": %s\n    }" % (n, json.dumps(a, indent=4, ensure_ascii=False).replace("\n", "\n        "))
                              for n, a in calls) + "\n]"
case("action", "two", "I will.\nAction:\n```json\n" + actions(*BOTH) + "```", BOTH, content="I will.")
case("action", "on one line", "Action: ```json\n" + actions(("get_weather", PARIS)) + "\n```", [("get_weather", PARIS)])
case("action", "no gap, then text", "Action:```json\n[{\"tool_name\": \"now\", \"parameters\": {}}]\n```\nDone", [("now", {})], content="Done")
case("action", "no action", "Action: none\n```json\n[1]\n```", content="Action: none\n```json\n[1]\n```")
case("action", "another list", "Action:\n```json\n[1]\n```", content="Action:\n```json\n[1]\n```")
case("action", "broken off", "Action:\n```json\n[{\"tool_name\": \"get_weather\", \"parameters\": {\"city\"", [{"name": "get_weather", "args": "{\"city\"", "ended": True}])

# ---- Kimi K3 ----
K3 = ["<|open|>think<|sep|>", "<|close|>think<|sep|>"]
def k3_type(v):
    return {bool: "boolean", int: "number", float: "number", str: "string", dict: "object", list: "array", type(None): "null"}[type(v)]
def k3(*calls):
    return "<|open|>tools<|sep|>" + "".join("<|open|>call tool=\"%s\" index=\"%d\"<|sep|>%s<|close|>call<|sep|>" % (n, i + 1, a if isinstance(a, str) else "".join(
        "<|open|>argument key=\"%s\" type=\"%s\"<|sep|>%s<|close|>argument<|sep|>" % (k, k3_type(v), v if isinstance(v, str) else dumps(v)) for k, v in a.items()))
        for i, (n, a) in enumerate(calls)) + "<|close|>tools<|sep|>"
K3_SAID = "<|open|>response<|sep|>%s<|close|>response<|sep|>"
case("kimi3", "thoughts, text and two calls", "Hm.<|close|>think<|sep|>" + K3_SAID % "I will." + k3(*BOTH) + "<|close|>message<|sep|>", BOTH,
     content="I will.", reasoning="Hm.", think=K3, opened=True)
case("kimi3", "an answer", K3[0] + "Hm." + K3[1] + K3_SAID % "Paris <b>.\nYes." + "<|close|>message<|sep|>", content="Paris <b>.\nYes.", reasoning="Hm.", think=K3)
case("kimi3", "the response was opened by the prompt", "Paris.<|close|>response<|sep|>", content="Paris.")
case("kimi3", "all arguments as JSON", K3_SAID % "" + k3(("search_docs", "<|open|>json type=\"object\"<|sep|>\n" + dumps(DOCS) + "<|close|>json<|sep|>")), [("search_docs", DOCS)])
case("kimi3", "types that the tag names", k3(("ghost", {"a": "5", "b": 5, "c": None, "d": [True]})), [("ghost", {"a": "5", "b": 5, "c": None, "d": [True]})])
case("kimi3", "no arguments", k3(("now", {})), [("now", "{}")])
case("kimi3", "no call", "<|open|>tools<|sep|>nothing", content="<|open|>tools<|sep|>nothing")
case("kimi3", "broken off", k3(("get_weather", PARIS)).partition("s<|close|>")[0], [{"name": "get_weather", "args": "{\"city\": \"Pari", "ended": True}])

# ---- MiniMax M3 ----
NS = "]<]minimax[>["
def m3_xml(v):
    if isinstance(v, dict):
        return "".join("%s<%s>%s%s</%s>" % (NS, k, m3_xml(x), NS, k) for k, x in v.items() if x is not None)
    if isinstance(v, list):
        return "".join("%s<item>%s%s</item>" % (NS, m3_xml(x), NS) for x in v)
    return v if isinstance(v, str) else dumps(v)
def m3(*calls):
    return NS + "<tool_call>\n" + "".join("%s<invoke name=\"%s\">%s%s</invoke>\n" % (NS, n, m3_xml(a), NS) for n, a in calls) + NS + "</tool_call>"
DEEP = {"query": "a <b> & </c>", "filters": {"tags": ["x", ["y", {"thing": 1}]], "exact": False}, "tags": ["one", "two"]}
ALMOST = {k: v for k, v in DOCS.items() if k != "filters"} | {"filters": {"tags": ["a", "b"], "exact": True}}
case("minimax3", "thoughts, text and two calls", "<mm:think>Hm.</mm:think>I will.\n" + m3(("get_weather", PARIS), ("search_docs", ALMOST)),
     [("get_weather", PARIS), ("search_docs", ALMOST)], content="I will.", reasoning="Hm.", think=["<mm:think>", "</mm:think>"])
case("minimax3", "nested", m3(("search_docs", DEEP)), [("search_docs", DEEP)])
case("minimax3", "a member called as its parent", m3(("search_docs", {"query": "q", "filters": {"filters": {"filters": 1}}})), [("search_docs", {"query": "q", "filters": {"filters": {"filters": 1}}})])
case("minimax3", "JSON in the place of tags", m3(("search_docs", {"query": "q", "tags": "[\"a\"]", "filters": "{\"exact\": true}"})), [("search_docs", {"query": "q", "tags": ["a"], "filters": {"exact": True}})])
case("minimax3", "empty lists and objects", m3(("search_docs", {"query": "", "tags": [], "filters": {}})), [("search_docs", {"query": "", "tags": [], "filters": {}})])
case("minimax3", "no schema", m3(("ghost", {"a": [1, 2], "b": {"c": "x y", "d": 2.5}})), [("ghost", {"a": [1, 2], "b": {"c": "x y", "d": 2.5}})])
case("minimax3", "tags that do not fit", m3(("search_docs", {"query": "q", "filters": NS + "<a>1"})), [("search_docs", {"query": "q", "filters": NS + "<a>1"})])
case("minimax3", "no arguments, end marks missing", NS + "<tool_call>" + NS + "<invoke name=\"now\">" + NS + "</tool_call>", [("now", "{}")])
case("minimax3", "no call", NS + "<tool_call>no", content=NS + "<tool_call>no")
case("minimax3", "broken off", m3(("get_weather", PARIS)).partition("is]<]")[0], [{"name": "get_weather", "args": "{\"city\": \"Par", "ended": True}])

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "outputs.json"), "w", encoding="utf-8") as f:
    f.write("{\"tools\": " + dumps(TOOLS) + ",\n\"cases\": [\n" + ",\n".join(dumps(c) for c in CASES) + "\n]}\n")
