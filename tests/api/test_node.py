#!/usr/bin/env python3
"""Runs tests/api/node/sdk.mjs (the official OpenAI SDK for Node) against the real daemon."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SMOLLM2, TOP, Daemon  # noqa: E402

T2I = os.path.join(TOP, "models", "tiny-t2i")
with Daemon("--api-key", "sk-test", f"tiny-t2i={T2I}", model=SMOLLM2, name="smollm2-135m") as d:
    node = os.path.join(TOP, ".venv", "bin", "node")
    r = subprocess.run([node, "sdk.mjs", d.url + "/v1"], cwd=os.path.join(TOP, "tests", "api", "node"), timeout=300)
sys.exit(r.returncode)
