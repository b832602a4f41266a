#!/usr/bin/env python3
"""Runs tests/api/node/*.mjs (the official OpenAI and Anthropic SDKs for Node) against the real daemon. Every answer and
event that they get is checked on its way (relay.py)."""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, SMOLLM2, TOP, Daemon  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from relay import Relay  # noqa: E402
from test_embeddings import with_tokenizer  # noqa: E402

T2I = os.path.join(TOP, "models", "tiny-t2i")
NODE = os.path.join(TOP, ".venv", "bin", "node")
SEEN = {"CreateChatCompletionResponse", "CreateChatCompletionStreamResponse", "CreateCompletionResponse", "CreateEmbeddingResponse",
        "ImagesResponse", "ImageGenCompletedEvent", "ListModelsResponse", "Response", "ResponseCompletedEvent",
        "ResponseFunctionCallArgumentsDeltaEvent", "ResponseTextDeltaEvent", "ResponseItemList", "Message", "RawMessageStreamEvent",
        "MessageTokensCount", "Error", "ErrorResponse"}


def main():
    passed = failed = 0
    with tempfile.TemporaryDirectory() as tmp, Daemon(
            "--api-key", "sk-test", f"tiny-t2i={T2I}", f"vec={with_tokenizer(tmp, 'bert')}", model=SMOLLM2, name="smollm2-135m") as d:
        with Relay(d.url) as relay:
            for name, tail in (("sdk", "/v1"), ("helpers", "/v1"), ("anthropic", "")):
                r = subprocess.run([NODE, name + ".mjs", relay.url + tail], cwd=os.path.join(TOP, "tests", "api", "node"),
                                   timeout=300 * SLOW, stdout=subprocess.PIPE, text=True)
                print(r.stdout, end="")
                n = re.search(r"^(\d+) passed, (\d+) failed$", r.stdout, re.M)
                passed += int(n.group(1)) if n else 0
                failed += int(n.group(2)) if n else 1
    for what in sorted(set(relay.bad))[:20]:
        print(what)
    missing = sorted(SEEN - set(relay.seen))
    if missing:
        print("never seen:", *missing)
    failed += bool(relay.bad) + bool(missing)
    print(f"checked: {sum(relay.seen.values())} answers and events of {len(relay.seen)} kinds")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
