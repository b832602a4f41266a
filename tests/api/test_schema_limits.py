#!/usr/bin/env python3
"""Schemas, patterns and grammars made to be expensive: each is answered within its limits, by what it asks for or by 400 with the
reason, and the server answers others meanwhile."""
import json
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_http  # noqa: E402

ANSWER_S = 40  # a build's 2 s of work, on a machine that has other things to do, and under sanitizers
HEALTH_S = 2   # the longest a small request may wait meanwhile


def refs(n, make, last):
    return {"$defs": dict({f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}, i) for i in range(n)}, **{f"d{n}": last}), "$ref": "#/$defs/d0"}


def nest(n, make, inner):
    for i in range(n):
        inner = make(inner, i)
    return inner


STRING = {"type": "string"}
REFUSED, ANSWERED, EITHER = {400}, {200}, {200, 400}
SCHEMAS = (  # name, schema, statuses
    ("references that double", refs(40, lambda r, i: {"allOf": [r, dict(r)]}, STRING), ANSWERED),
    ("choices of references", refs(60, lambda r, i: {"anyOf": [{"required": ["x"], "properties": {"x": r}}, {"properties": {"y": r}}]}, STRING), EITHER),
    ("conditions in conditions", refs(40, lambda r, i: {"if": {"properties": {f"a{i}": {"const": "x"}}}, "then": r, "else": dict(r)}, {"type": "object"}), EITHER),
    ("negations in negations", {"not": refs(40, lambda r, i: {"allOf": [{"not": r}, {"anyOf": [r, {"not": r}]}]}, {"type": "string", "pattern": "a"})}, EITHER),
    ("one of one of", refs(40, lambda r, i: {"oneOf": [r, {"properties": {"a": r}}, {"required": [f"k{i}"]}]}, {"type": "object"}), EITHER),
    ("anyOf in anyOf", nest(25, lambda s, i: {"anyOf": [s, {"type": "integer", "minimum": i}]}, STRING), ANSWERED),
    ("objects in objects", nest(25, lambda s, i: {"type": "object", "properties": {"a": s}}, STRING), EITHER),
    ("a product of choices", {"allOf": [{"anyOf": [{"properties": {f"k{i}": {"const": j}}} for j in range(3)]} for i in range(20)]}, REFUSED),
    ("dependencies of each other", {"type": "object", "dependentRequired": {f"a{i}": [f"a{(i * 7 + 1) % 40}"] for i in range(40)}}, EITHER),
    ("minItems", {"type": "array", "items": STRING, "minItems": 10**9, "maxItems": 10**12}, EITHER),
    ("minItems in minItems", nest(3, lambda s, i: {"type": "array", "minItems": 10**6, "items": s}, STRING), EITHER),
    ("maxLength", {"type": "string", "maxLength": 10**15, "minLength": 10**9}, EITHER),
    ("maxLength beside a pattern", {"type": "string", "maxLength": 10**9, "pattern": "^[a-z]+$"}, ANSWERED),
    ("minLength beside a pattern", {"type": "string", "minLength": 1900, "pattern": "^([a-z]+[0-9]*)+$"}, REFUSED),
    ("contains", {"type": "array", "contains": {"const": "x"}, "minContains": 10**9, "maxItems": 10**9}, REFUSED),
    ("a pattern that backtracks", {"type": "string", "pattern": "^(a+)+$"}, ANSWERED),
    ("a pattern that doubles", {"type": "string", "pattern": "(a|b)*a(a|b){25}"}, REFUSED),
    ("repetitions of repetitions", {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"}, REFUSED),
    ("many patterns at once", {"allOf": [{"type": "string", "pattern": f".*{chr(97 + i)}.*{chr(98 + i)}.*"} for i in range(20)]}, REFUSED),
    ("look-aheads", {"type": "string", "pattern": "".join(f"(?=.*{c})" for c in "abcdefgh") + ".{8,64}"}, REFUSED),
    ("a large enum", {"enum": [f"value {i} " * 8 for i in range(4000)]}, EITHER),
    ("many open ways", {"anyOf": [{"type": "string", "pattern": f"^[a-z]{{3}}v{i}x[0-9]+$"} for i in range(2500)]}, REFUSED),
    ("many properties", {"properties": {f"p{i}": STRING for i in range(5000)}}, REFUSED),
    ("counted properties", {"properties": {f"p{i}": STRING for i in range(500)}, "maxProperties": 200}, REFUSED),
    ("no end", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, REFUSED),
    ("choices of itself", {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, REFUSED),
)
OTHERS = (
    ({"guided_regex": "(a|b)*a(a|b){25}"}, REFUSED),
    ({"guided_regex": "(" * 300 + "a" + ")" * 300}, REFUSED),
    ({"guided_grammar": "root ::= " + "(" * 300 + "\"a\"" + ")" * 300}, REFUSED),
    ({"guided_grammar": "root ::= a{1000000}\na ::= b{1000000}\nb ::= [a-z]{1000000}"}, EITHER),
    ({"guided_grammar": "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60)) + "r60 ::= \"x\"\nroot ::= r0"}, EITHER),
)


class Limits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = test_http.Daemon("--device", "cpu", "--ctx-size", "512", model=test_http.MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def ask(self, what, statuses, reason):
        began = time.monotonic()
        s, v = self.d.post("/v1/completions", dict({"model": "m", "prompt": "x", "max_tokens": 4}, **what))
        took = time.monotonic() - began
        self.assertIn(s, statuses, v)
        self.assertLess(took, ANSWER_S)
        if s == 400:
            self.assertTrue(v["error"]["param"].startswith(reason), v)
            self.assertIn(v["error"]["code"], ("schema_too_complex", "unsupported_value", "invalid_value"))
            self.assertGreater(len(v["error"]["message"]), 20)

    def test_schemas(self):
        for name, schema, statuses in SCHEMAS:
            with self.subTest(name=name):
                self.ask({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}, statuses,
                         "response_format")

    def test_others(self):
        for what, statuses in OTHERS:
            with self.subTest(what=json.dumps(what)[:60]):
                self.ask(what, statuses, next(iter(what)))

    def test_loop(self):
        """While every worker is busy with such schemas, requests that need none are answered."""
        slow = {"enum": [f"value {i} " * 8 for i in range(4000)]}
        ends, waits = [], []

        def one(i):
            schema = {"anyOf": [slow, {"const": i}]}  # none is in the cache
            ends.append(self.d.post("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1, "guided_json": schema})[0])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            began = time.monotonic()
            self.assertEqual(self.d.get("/health")[0], 200)
            waits.append(time.monotonic() - began)
            time.sleep(0.02)
        for t in threads:
            t.join()
        self.assertEqual(len(ends), 6)
        self.assertLessEqual(set(ends), EITHER)
        self.assertGreater(len(waits), 5)
        self.assertLess(max(waits), HEALTH_S)


if __name__ == "__main__":
    unittest.main()
