#!/usr/bin/env python3
"""JSON schemas as grammars, judged by another validator (python jsonschema) on real schemas and on the official test
suite: every schema either compiles, and then everything sampled from its grammar is valid, no invalid instance is
accepted and (nearly) every valid one is, or it is refused with the keyword named. Prints coverage by keyword.

    test_schema_grammar.py [TOOL] [--markdown]

--markdown writes the table of docs/structured-output.md anew.
"""
import collections
import json
import lzma
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(TOP, "tests", "data", "json-schema")
VENV = os.path.join(TOP, ".venv", "bin", "python")
try:
    import jsonschema
except ImportError:
    if os.path.exists(VENV) and os.path.realpath(sys.executable) != os.path.realpath(VENV) and not os.environ.get("IN_VENV"):
        os.execve(VENV, [VENV] + sys.argv, dict(os.environ, IN_VENV="1"))
    print("test_schema_grammar: python jsonschema is missing (conf/setup.sh test)")
    sys.exit(1)

SAMPLES = 3
# Annotations are no part of what is asked: formats are, as we enforce those we know.
LEAST = {True: (0.98, 0.98), False: (0.7, 0.85)}  # shares of schemas that compile, and of valid instances; real ones and the suite
DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
DOC = os.path.join(TOP, "docs", "structured-output.md")
MARK = "<!-- coverage by keyword: tests/api/test_schema_grammar.py --markdown -->\n"


class Tool:
    def __init__(self, path):
        self.p = subprocess.Popen([path, "tool"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TOP, text=True)

    def ask(self, **job):
        self.p.stdin.write(json.dumps(job) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"the tool died ({self.p.wait()}) on {json.dumps(job)[:3000]}")
        return json.loads(line)


def deref(schema, root):
    for _ in range(20):
        ref = isinstance(schema, dict) and schema.get("$ref")
        if not ref or not ref.startswith("#/"):
            return schema
        at = root
        for part in ref[2:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            at = at.get(part, {}) if isinstance(at, dict) else {}
        schema = at
    return schema


def reorder(v, schema, root, depth=0):
    """Members in the order of the schema's properties: the one order that the grammar writes."""
    schema = deref(schema, root)
    if depth > 40:
        return v
    if isinstance(v, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        prefix = (schema.get("prefixItems") or []) if isinstance(schema, dict) else []
        if isinstance(items, list):
            prefix, items = items, schema.get("additionalItems")
        return [reorder(x, prefix[i] if i < len(prefix) else items or {}, root, depth + 1) for i, x in enumerate(v)]
    if not isinstance(v, dict):
        return v
    order, sub = [], {}

    def look(s, d=0):
        s = deref(s, root)
        if not isinstance(s, dict) or d > 8:
            return
        for k, x in (s.get("properties") or {}).items():
            if k not in sub:
                order.append(k)
                sub[k] = x
        for k in ("allOf", "anyOf", "oneOf"):
            for x in s.get(k) or []:
                look(x, d + 1)
        for k in ("if", "then", "else"):
            look(s.get(k), d + 1)
        for k in s.get("required") if isinstance(s.get("required"), list) else []:
            if k not in sub:
                order.append(k)
                sub[k] = {}

    look(schema)
    rest = [k for k in v if k not in sub]
    more = schema.get("additionalProperties") if isinstance(schema, dict) else {}
    return {k: reorder(v[k], sub.get(k, more or {}), root, depth + 1) for k in [k for k in order if k in v] + rest}


def keywords(schema, out):
    if isinstance(schema, dict):
        for k, v in schema.items():
            out.add(k)
            if k in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas") and isinstance(v, dict):
                for x in v.values():
                    keywords(x, out)
            elif k not in ("enum", "const", "default", "examples", "required"):
                keywords(v, out)
    elif isinstance(schema, list):
        for x in schema:
            keywords(x, out)
    return out


def text(v):
    return json.dumps(v, ensure_ascii=False, separators=(",", ":"))


def load(name):
    with lzma.open(os.path.join(DATA, name), "rt", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def validator(schema):
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return cls(schema)


class Judge:
    def __init__(self, tool, official=False):
        self.tool = tool
        self.official = official  # the instances are from the suite, not from the validator
        self.kw = collections.defaultdict(lambda: [0, 0, 0, 0])  # schemas, compiled, valid, accepted
        self.errors = []
        self.refused = collections.Counter()
        self.n = self.compiled = self.valid = self.accepted = self.sampled = 0
        self.slowest = 0

    @staticmethod
    def agrees(check, valid, invalid):
        try:
            return all(check.is_valid(v) for v in valid) and not any(check.is_valid(v) for v in invalid)
        except Exception:  # its own regex dialect, remote schemas
            return False

    def schema(self, name, schema, valid, invalid):
        keys = keywords(schema, set()) & KNOWN
        texts = [text(reorder(v, schema, schema)) for v in valid] + [text(v) for v in invalid]
        r = self.tool.ask(schema=schema, texts=texts, samples=SAMPLES, seed=self.n)
        if r is None:  # numbers beyond 64 bits: no request with them is read
            self.refused["not readable as JSON"] += 1
            return None
        self.n += 1
        for k in keys:
            self.kw[k][0] += 1
        if not r["ok"]:
            self.refused[r["text"][:70]] += 1
            if not r["where"] and "'" not in r["text"] and r["text"] != "no text fits it":
                print(f"refused without a place: {name}: {r['text']}")
            return r
        self.compiled += 1
        self.slowest = max(self.slowest, r["us"])
        good = sum(r["accepts"][:len(valid)])
        self.valid += len(valid)
        self.accepted += good
        for k in keys:
            self.kw[k][1] += 1
            self.kw[k][2] += len(valid)
            self.kw[k][3] += good
        for v, ok in zip(texts[:len(valid)], r["accepts"]):
            if not ok and os.environ.get("VERBOSE"):
                print(f"missed: {name}: {v[:300]}")
        for v, ok in zip(texts[len(valid):], r["accepts"][len(valid):]):
            if ok:
                self.errors.append(f"{name}: an invalid instance is accepted: {v[:300]}")
        check = validator(schema)
        if self.official and not self.agrees(check, valid, invalid):
            self.refused["(not judged: the validator differs from the suite)"] += 1
            return r
        for s in r["samples"]:
            self.sampled += 1
            try:
                v = json.loads(s)
            except ValueError as e:
                self.errors.append(f"{name}: a sample is not JSON ({e}): {s[:300]}")
                continue
            try:
                e = next(check.iter_errors(v), None)
            except Exception as why:  # its own regex dialect, remote schemas
                self.refused[f"(not judged: {type(why).__name__})"] += 1
                break
            if e is not None:
                self.errors.append(f"{name}: a sample is not valid: {s[:300]}: {e.message[:200]}")
        return r


KNOWN = set("""type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format items
prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains properties patternProperties
additionalProperties required propertyNames minProperties maxProperties $ref $defs definitions $dynamicRef $anchor $id allOf anyOf
oneOf not if then else dependentRequired dependentSchemas dependencies unevaluatedProperties unevaluatedItems""".split())


def write_table(judges):
    """Schemas that compile, of all that use the keyword; then valid instances that are accepted, of those of what compiles."""
    def cell(a):
        return f"{a[1]}/{a[0]}, {a[3]}/{a[2]}" if a[0] else ""
    names = ["real schemas", *DRAFTS]
    rows = ["| keyword | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    rows.append("| **all** | " + " | ".join(cell((judges[n].n, judges[n].compiled, judges[n].valid, judges[n].accepted)) for n in names) + " |")
    for k in sorted({k for n in names for k in judges[n].kw}):
        rows.append(f"| `{k}` | " + " | ".join(cell(judges[n].kw.get(k, (0, 0, 0, 0))) for n in names) + " |")
    with open(DOC, encoding="utf-8") as f:
        before, _, after = f.read().split(MARK)
    with open(DOC, "w", encoding="utf-8") as f:
        f.write(before + MARK + "\n".join(rows) + "\n" + MARK + after)


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    variant = os.environ.get("VARIANT", "release")
    tool = args[0] if args and os.path.exists(args[0]) else os.path.join(TOP, "build", variant, "tests", "api", "test_schema_grammar")
    t = Tool(tool)
    judges = {"real schemas": Judge(t)}
    judges.update({d: Judge(t, True) for d in DRAFTS})
    for o in load("real.jsonl.xz"):
        judges["real schemas"].schema(o["id"], o["schema"], o["valid"], o["invalid"])
    for o in load("suite.jsonl.xz"):
        judges["draft2020-12"].schema(o["id"], o["schema"], o["valid"], o["invalid"])
    for o in load("suite-drafts.jsonl.xz"):
        judges[o["id"].split("/")[0]].schema(o["id"], o["schema"], o["valid"], o["invalid"])
    for name, j in judges.items():
        print(f"{name}: {j.compiled} of {j.n} compile, {j.accepted} of {j.valid} valid instances accepted, "
              f"{j.sampled} samples, slowest {j.slowest / 1000:.1f} ms, {len(j.errors)} errors")
        for why, n in j.refused.most_common(40):
            print(f"   {n:4d} {why}")
        for k in sorted(j.kw):
            a = j.kw[k]
            print(f"   {k:24s} {a[1]:4d}/{a[0]:<4d} schemas {a[3]:5d}/{a[2]:<5d} valid")
    errors = [e for j in judges.values() for e in j.errors]
    for e in errors[:60]:
        print("ERROR", e)
    bad = len(errors)
    for name, j in judges.items():
        least, least_valid = LEAST[name == "real schemas"]
        if j.compiled < least * j.n or j.accepted < least_valid * j.valid:
            print(f"coverage of {name} fell")
            bad += 1
    if "--markdown" in sys.argv:
        write_table(judges)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
