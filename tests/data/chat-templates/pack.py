#!/usr/bin/env python3
"""Pack chat templates, conversations and expected texts into one file for tests/api/test_template.c.

usage: pack.py DIR > chat-templates.json.xz
DIR holds templates/*.jinja, cases.json and goldens/*.json as described in SOURCES."""
import json, lzma, os, sys


def main():
    root = sys.argv[1]
    cases = json.load(open(os.path.join(root, "cases.json"), encoding="utf-8"))
    out = dict(cases, templates=[])
    for name in sorted(os.listdir(os.path.join(root, "templates"))):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(root, "templates", name), encoding="utf-8", newline="") as f:
            source = f.read()
        with open(os.path.join(root, "goldens", name[:-6] + ".json"), encoding="utf-8") as f:
            rows = json.load(f)["rows"]
        want = {r["case"]: r.get("expected") for r in rows}  # null: an error
        out["templates"].append(dict(name=name[:-6], source=source, expected=want))
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    sys.stdout.buffer.write(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
