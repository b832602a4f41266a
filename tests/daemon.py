"""Starts the real daemon for a test and stops it. Standard library only.

    with Daemon("--device", "null", model=PATH) as d:
        d.get("/v1/models"), d.post("/v1/chat/completions", {...})

STEPD names the binary (default build/release/stepd). A daemon that does not stop cleanly, or whose output shows a
sanitizer report, fails the test."""
import http.client
import json
import lzma
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPD = os.environ.get("STEPD", os.path.join(TOP, "build", "release", "stepd"))
VARIANT = os.environ.get("VARIANT", "release")
SLOW = {"asan": 4, "tsan": 10}.get(VARIANT, 1)  # how much longer things may take
SMOLLM2 = os.environ.get("STEPD_TEST_MODEL", os.path.join(
    os.environ.get("STEPD_MODELS", os.path.join(TOP, "models")), "smollm2-135m-instruct-q4_1.gguf"))


_models = tempfile.TemporaryDirectory(prefix="stepd-test-")


def tiny_model():
    """Path of the tiny test model with a long context: the null device needs no more than its vocabulary."""
    path = os.path.join(_models.name, "tiny.gguf")
    if not os.path.exists(path):
        with lzma.open(os.path.join(TOP, "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz")) as f:
            data = bytearray(f.read())
        key = b"llama.context_length"
        at = data.index(key) + len(key) + 4
        data[at:at + 4] = struct.pack("<I", 1 << 20)
        with open(path, "wb") as f:
            f.write(data)
    return path


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Daemon:
    def __init__(self, *args, model=None, env=None, ready=True, name="m", port=None, preexec=None):
        self.port = port or free_port()
        self.model = name
        self.log = tempfile.TemporaryFile()
        cmd = [STEPD, "serve", "--port", str(self.port), *args]
        if model:
            cmd.append(f"{name}={model}")
        self.p = subprocess.Popen(cmd, cwd=TOP, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                  env=dict(os.environ, **(env or {})), preexec_fn=preexec)
        self.url = f"http://127.0.0.1:{self.port}"
        if ready:
            try:
                self.wait_ready()
            except BaseException:
                self.p.kill()
                self.p.wait()
                raise

    def output(self):
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")

    def wait_ready(self, timeout=30):
        end = time.monotonic() + timeout * SLOW
        while time.monotonic() < end:
            if self.p.poll() is not None:
                raise AssertionError(f"stepd ended with {self.p.returncode}:\n{self.output()}")
            try:
                if self.request("GET", "/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.01)
        raise AssertionError("stepd is not ready:\n" + self.output())

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        h = {"Content-Type": "application/json"} if body is not None else {}
        h.update(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        try:
            c.request(method, path, body, h)
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def get(self, path, **kw):
        s, h, b = self.request("GET", path, **kw)
        return s, json.loads(b) if b[:1] in (b"{", b"[") else b.decode()

    def post(self, path, body, **kw):
        s, h, b = self.request("POST", path, body, **kw)
        return s, json.loads(b) if b[:1] in (b"{", b"[") else b.decode()

    def stream(self, path, body, **kw):
        """Data of each SSE frame, as text."""
        s, h, b = self.request("POST", path, dict(body, stream=True), **kw)
        assert s == 200, b
        return [f[6:] for f in b.decode().split("\n\n") if f.startswith("data: ")]

    def chat(self, text, **kw):
        return self.post("/v1/chat/completions", dict(
            {"model": self.model, "messages": [{"role": "user", "content": text}]}, **kw))

    def metrics(self):
        """{name{labels}: value} of /metrics."""
        s, _, b = self.request("GET", "/metrics")
        assert s == 200
        return {m.group(1): float(m.group(2)) for m in re.finditer(r"^([^#\s]\S*) (\S+)$", b.decode(), re.M)}

    def metric(self, name):
        """Sum over labels of one metric."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

    def stop(self, sig=signal.SIGTERM, timeout=40):
        if self.p.poll() is None:
            self.p.send_signal(sig)
        try:
            rc = self.p.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
            raise AssertionError("stepd did not stop:\n" + self.output()[-4000:])
        return rc

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        rc = self.stop()
        text = self.output()
        self.log.close()
        bad = re.search(r"ERROR: AddressSanitizer|runtime error:|WARNING: ThreadSanitizer|LeakSanitizer|stepd: bug", text)
        if bad or (kind is None and rc != 0):
            shown = text[max(0, bad.start() - 500):][:8000] if bad else text[-8000:]
            raise AssertionError(f"exit {rc}:\n{shown}")
        if kind is not None:
            print(text[-3000:])
