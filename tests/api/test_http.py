#!/usr/bin/env python3
"""The HTTP side of the daemon over raw sockets: framing, limits, keys, CORS, slow and vanishing clients, signals.
Runs on the null device, so that it judges server and scheduler alone. Standard library only."""
import concurrent.futures
import http.client
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, STEPD, TOP, Daemon, free_port, tiny_model  # noqa: E402

DIR = tempfile.TemporaryDirectory(prefix="stepd-http-")
MODEL = tiny_model()


def start(*args, **kw):
    return Daemon("--device", "null", *args, model=MODEL, **kw)


def body(max_tokens=4, **kw):
    return json.dumps({"model": "m", "prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, **kw})


def request(data, path="/v1/completions", method="POST", extra=""):
    return (f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{extra}"
            f"Content-Length: {len(data)}\r\n\r\n{data}").encode()


class Raw:
    """A socket that reads HTTP answers."""

    def __init__(self, d, sock=None):
        self.s = sock or socket.create_connection(("127.0.0.1", d.port), timeout=20 * SLOW)
        self.s.settimeout(20 * SLOW)
        self.buf = b""

    def send(self, data):
        self.s.sendall(data if isinstance(data, bytes) else data.encode())
        return self

    def until(self, mark):
        while mark not in self.buf:
            part = self.s.recv(65536)
            if not part:
                raise EOFError(self.buf)
            self.buf += part
        head, self.buf = self.buf.split(mark, 1)
        return head

    def answer(self, head_only=False):
        """(status, {lower-case header: value}, body)"""
        lines = self.until(b"\r\n\r\n").decode().split("\r\n")
        status = int(lines[0].split()[1])
        h = {k.lower(): v.strip() for k, v in (x.split(":", 1) for x in lines[1:])}
        if status == 100 or status == 204 or head_only:
            return status, h, b""
        if h.get("transfer-encoding") == "chunked":
            out = bytearray()
            while True:
                n = int(self.until(b"\r\n"), 16)
                while len(self.buf) < n + 2:
                    part = self.s.recv(65536)
                    if not part:
                        raise EOFError
                    self.buf += part
                out += self.buf[:n]
                self.buf = self.buf[n + 2:]
                if n == 0:
                    return status, h, bytes(out)
        n = int(h["content-length"])
        while len(self.buf) < n:
            part = self.s.recv(65536)
            if not part:
                raise EOFError(self.buf)
            self.buf += part
        out, self.buf = self.buf[:n], self.buf[n:]
        return status, h, out

    def ask(self, data):
        return self.send(data).answer()

    def ended(self, within=5):
        """The peer closes within so many seconds."""
        self.s.settimeout(within * SLOW)
        try:
            while self.s.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self):
        self.s.close()

    def reset(self):
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def wait_for(fn, within=2.0):
    end = time.monotonic() + within * SLOW
    while True:
        v = fn()
        if v or time.monotonic() > end:
            return v
        time.sleep(0.02)


class Case(unittest.TestCase):
    args = ()

    @classmethod
    def setUpClass(cls):
        cls.d = start(*cls.args)

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def error(self, got, status, code=None, part=""):
        s, h, b = got
        self.assertEqual(s, status, b)
        e = json.loads(b)["error"]
        self.assertEqual(set(e), {"message", "type", "param", "code"})
        self.assertEqual(e["code"], code)
        self.assertIn(part, e["message"])
        self.assertIn("application/json", h["content-type"])
        self.assertTrue(h["x-request-id"])
        return h

    def idle(self, within=2.0):
        """Back to rest: nothing runs, no block is held."""
        def now():
            m = self.d.metrics()
            busy = {k: v for k, v in m.items() if k.split("{")[0] in (
                "vllm:num_requests_running", "vllm:num_requests_waiting", "stepd:sequences_running",
                "stepd:kv_blocks_used") and v}
            return not busy and m["stepd:http_requests_open"] == 1
        self.assertTrue(wait_for(now, within), {k: v for k, v in self.d.metrics().items() if "_bucket" not in k and v})


class Basics(Case):
    args = ("--max-body-bytes", "200KiB", "--max-head-bytes", "8KiB", "--max-head-fields", "20")

    def test_paths_and_methods(self):
        with Raw(self.d) as r:
            self.error(r.ask("GET /nope HTTP/1.1\r\nHost: x\r\n\r\n"), 404, None, "GET /nope")
            h = self.error(r.ask("GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"), 405, "method_not_supported")
            self.assertIn("POST", h["allow"])
            h = self.error(r.ask("DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 405, "method_not_supported")
            self.assertIn("GET", h["allow"])
            self.assertEqual(r.ask("GET /v1/models/ HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)
            self.assertEqual(r.ask("GET /v1/models?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)
            self.assertIn(r.ask("GET //v1//models HTTP/1.1\r\nHost: x\r\n\r\n")[0], (200, 404))
            self.assertEqual(r.ask("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")[0], 405)
            for path in ("/health", "/live", "/ready"):
                s, h, b = r.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual((s, json.loads(b)), (200, {"status": "ok"}))

    def test_head(self):
        with Raw(self.d) as r:
            for path in ("/health", "/v1/models"):
                s, h, b = r.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n").answer(head_only=True)
                self.assertEqual(s, 200)
                self.assertGreater(int(h["content-length"]), 0)
            self.assertEqual(r.ask("GET /live HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)  # nothing left in between

    def test_request_id(self):
        with Raw(self.d) as r:
            s, h, b = r.ask("GET /live HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-id_1.2\r\n\r\n")
            self.assertEqual(h["x-request-id"], "my-id_1.2")
            for bad in ("a b", "x" * 200, "<script>", ""):
                s, h, b = r.ask(f"GET /live HTTP/1.1\r\nHost: x\r\nX-Request-Id: {bad}\r\n\r\n")
                self.assertRegex(h["x-request-id"], r"^req-[0-9a-f]{32}$")

    def test_pipelining(self):
        one = request(body(3))
        with Raw(self.d) as r:
            r.send(one + request(body(5, stream=True)) + b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n" + one)
            self.assertEqual(json.loads(r.answer()[2])["usage"]["completion_tokens"], 3)
            self.assertTrue(r.answer()[2].endswith(b"data: [DONE]\n\n"))
            self.assertEqual(json.loads(r.answer()[2])["status"], "ok")
            self.assertEqual(r.answer()[0], 200)

    def test_byte_by_byte(self):
        with Raw(self.d) as r:
            for b in request(body(2)):
                r.send(bytes([b]))
            self.assertEqual(r.answer()[0], 200)

    def test_chunked(self):
        data = body(2).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" \
               b"Transfer-Encoding: chunked\r\n\r\n"
        with Raw(self.d) as r:
            for size in (1, 7, 1000):
                parts = [data[i:i + size] for i in range(0, len(data), size)]
                enc = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\nX-T: 1\r\n\r\n"
                self.assertEqual(r.ask(head + enc)[0], 200)
        for bad in (b"zz\r\nabc\r\n", b"-5\r\nhello\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nhelloXX\r\n"):
            with Raw(self.d) as r:
                s = r.ask(head + bad)[0]
                self.assertIn(s, (400, 413), bad)
                self.assertTrue(r.ended())
        with Raw(self.d) as r:  # over the limit, found in the middle
            big = b"%x\r\n%s\r\n" % (50000, b" " * 50000)
            r.send(head + big * 6)
            self.assertEqual(r.answer()[0], 413)
            self.assertTrue(r.ended())

    def test_expect(self):
        data = body(2)
        with Raw(self.d) as r:
            r.send(request(data, extra="Expect: 100-continue\r\n")[:-len(data)])
            self.assertEqual(r.answer()[0], 100)
            self.assertEqual(r.ask(data)[0], 200)
        with Raw(self.d) as r:  # the refusal comes instead
            r.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   "Expect: 100-continue\r\nContent-Length: 999999\r\n\r\n")
            self.error(r.answer(), 413, "request_too_large")

    def test_body_limits(self):
        with Raw(self.d) as r:
            data = body(2) + " " * 150000  # on the pool
            self.assertEqual(r.ask(request(data))[0], 200)
            self.error(r.ask(request(body(2) + " " * 300000)), 413, "request_too_large")
            self.assertEqual(r.ask(request(body(2)))[0], 200)  # the connection lives on
            self.error(r.ask(request("")), 400)
        with Raw(self.d) as r:
            self.error(r.ask("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                             "Content-Length: 99999999999\r\n\r\n"), 413, "request_too_large")
            self.assertTrue(r.ended())

    def test_media(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
            with Raw(self.d) as r:
                got = r.ask(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
                            f"Content-Length: 2\r\n\r\n{{}}")
                self.error(got, 415, "unsupported_content_type", kind)
        with Raw(self.d) as r:
            got = r.ask(request(body(2), extra="Content-Encoding: gzip\r\n"))
            self.error(got, 415, "unsupported_content_type", "gzip")

    def test_head_limits(self):
        with Raw(self.d) as r:
            many = "".join(f"X-{i}: 1\r\n" for i in range(30))
            self.error(r.ask(f"GET /live HTTP/1.1\r\nHost: x\r\n{many}\r\n"), 431)
        for size in (9000, 200000):
            with Raw(self.d) as r:
                try:
                    r.send("GET /live HTTP/1.1\r\nHost: x\r\nX-Big: " + "a" * size + "\r\n\r\n")
                    self.assertEqual(r.answer()[0], 431)
                except ConnectionError:
                    self.assertGreater(size, 9000)
        with Raw(self.d) as r:
            try:
                self.assertIn(r.ask("GET /" + "a" * 100000 + " HTTP/1.1\r\nHost: x\r\n\r\n")[0], (414, 431))
            except ConnectionError:
                pass

    def test_framing(self):
        data = body(1)
        post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        bad = [
            (f"{post}Content-Length: {len(data)}\r\nContent-Length: 3\r\n\r\n{data}", 400),
            (f"{post}Content-Length: {len(data)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            (f"{post}Content-Length: -1\r\n\r\n", 400),
            (f"{post}Content-Length: 0x10\r\n\r\n", 400),
            (f"{post}Content-Length: 5 5\r\n\r\n", 400),
            (f"{post}Transfer-Encoding: gzip\r\n\r\n", 501),
            (f"{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
            ("GET /live HTTP/1.1\r\n\r\n", 400),
            ("GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET /live HTTP/1.1\r\nHost: a\r\nBad Name: b\r\n\r\n", 400),
            ("GET /live HTTP/1.1\r\nHost : a\r\n\r\n", 400),
            ("GET /live HTTP/3.0\r\nHost: a\r\n\r\n", 505),
            ("GET /live HTTX/1.1\r\nHost: a\r\n\r\n", 400),
        ]
        for text, status in bad:
            with Raw(self.d) as r:
                try:
                    got = r.ask(text)[0]
                except EOFError:
                    got = status  # closed without a word is fine, too
                self.assertEqual(got, status, text)
                self.assertTrue(r.ended(), text)

    def test_http_1_0(self):
        data = body(3, stream=True)
        with Raw(self.d) as r:
            r.send(f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(data)}\r\n\r\n{data}")
            head = r.until(b"\r\n\r\n").decode().lower()
            self.assertNotIn("chunked", head)
            while True:
                part = r.s.recv(65536)
                if not part:
                    break
                r.buf += part
            self.assertTrue(r.buf.endswith(b"data: [DONE]\n\n"), r.buf)

    def test_metrics(self):
        self.d.post("/v1/completions", json.loads(body(7)))
        m = self.d.metrics()
        for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"):
            self.assertIn(name + '{model_name="m",engine="0"}', m)
        for h in ("vllm:time_to_first_token_seconds", "vllm:iteration_tokens_total", "vllm:e2e_request_latency_seconds"):
            inf = next(v for k, v in m.items() if k.startswith(h + "_bucket") and "+Inf" in k)
            self.assertEqual(inf, m[h + '_count{model_name="m",engine="0"}'])
            self.assertGreater(inf, 0)
        self.assertGreater(m["process_resident_memory_bytes"], 1e6)
        with open(f"/proc/{self.d.p.pid}/limits") as f:
            self.assertIn("Max open files", f.read())

    def test_no_spin(self):
        """An idle daemon sleeps, also with connections open."""
        def switches():
            with open(f"/proc/{self.d.p.pid}/status") as f:
                return sum(int(x.split()[1]) for x in f if "ctxt_switches" in x)

        def cpu():
            with open(f"/proc/{self.d.p.pid}/stat") as f:
                v = f.read().rsplit(")", 1)[1].split()
            return (int(v[11]) + int(v[12])) / os.sysconf("SC_CLK_TCK")
        self.idle()
        r = Raw(self.d)
        r.ask(request(body(2)))
        time.sleep(0.1)
        a, t = switches(), cpu()
        time.sleep(2)
        self.assertLess(switches() - a, 20)
        self.assertLess(cpu() - t, 0.1)
        r.close()


class Keys(Case):
    args = ("--api-key", "sk-one", "--api-key", "sk-two", "--cors-allow-origin", "http://ui.example")

    def get(self, extra, path="/v1/models", method="GET"):
        with Raw(self.d) as r:
            return r.ask(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n")

    def test_keys(self):
        for bad in ("", "Authorization: Bearer sk-on\r\n", "Authorization: Bearer\r\n", "Authorization: Basic sk-one\r\n",
                    "Authorization: Bearer sk-one2\r\n", "Authorization: sk-one\r\n", "X-Api-Key: no\r\n"):
            h = self.error(self.get(bad), 401, "invalid_api_key")
            self.assertIn("Bearer", h["www-authenticate"])
        for good in ("Authorization: Bearer sk-one\r\n", "Authorization: bearer  sk-two\r\n",
                     "AUTHORIZATION: BEARER sk-one\r\n", "X-Api-Key: sk-two\r\n"):
            self.assertEqual(self.get(good)[0], 200, good)
        for open_path in ("/health", "/live", "/ready", "/metrics"):
            self.assertEqual(self.get("", open_path)[0], 200)
        with Raw(self.d) as r:  # the body is swallowed first, then the connection goes on
            self.error(r.ask(request(body(1))), 401, "invalid_api_key")
            self.assertEqual(r.ask(request(body(1), extra="Authorization: Bearer sk-one\r\n"))[0], 200)

    def test_cors(self):
        origin = "Origin: http://ui.example\r\n"
        pre = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-new\r\n"
        s, h, b = self.get(origin + pre, "/v1/completions", "OPTIONS")
        self.assertEqual(s, 204)
        self.assertEqual(h["access-control-allow-origin"], "http://ui.example")
        self.assertIn("authorization", h["access-control-allow-headers"])
        self.assertIn("POST", h["access-control-allow-methods"])
        s, h, b = self.get(origin)
        self.assertEqual((s, h["access-control-allow-origin"], h["vary"]), (401, "http://ui.example", "Origin"))
        s, h, b = self.get("Origin: http://evil.example\r\n" + pre, "/v1/completions", "OPTIONS")
        self.assertNotIn("access-control-allow-origin", h)


class Limits(Case):
    args = ("--head-timeout", "2", "--body-timeout", "3", "--idle-timeout", "4", "--stall-timeout", "3",
            "--max-unsent-bytes", "64KiB", "--sse-ping", "1")

    def test_slow(self):
        """Dripping clients are cut at their limits; a probe beside them is not held up."""
        drip = [(Raw(self.d), b"GET /live HTTP/1.1\r\nX-A: " + b"a" * 60) for _ in range(20)]
        line = [(Raw(self.d), b"G" * 200) for _ in range(5)]
        post = [(Raw(self.d), request(body(1) + " " * 500)) for _ in range(20)]
        t0, ended = time.monotonic(), {}
        conns = drip + line + post
        i = 0
        while len(ended) < len(conns) and time.monotonic() - t0 < 9 * SLOW:
            for r, data in conns:
                if r in ended:
                    continue
                try:
                    r.s.setblocking(False)
                    r.s.send(data[i:i + 1])
                    got = r.s.recv(4096)
                    ended[r] = (time.monotonic() - t0, got)
                except BlockingIOError:
                    pass
                except ConnectionError:
                    ended[r] = (time.monotonic() - t0, b"")
            i += 1
            p = time.monotonic()
            self.assertEqual(self.d.get("/live")[0], 200)
            self.assertLess(time.monotonic() - p, 1.0 * SLOW)
            time.sleep(0.2)
        self.assertEqual(len(ended), len(conns))
        self.assertTrue(all(1.5 < t for t, _ in ended.values()), ended.values())
        self.assertTrue(any(b" 408 " in got for _, got in ended.values()))
        for r, _ in conns:
            r.close()

    def test_idle_closed(self):
        with Raw(self.d) as a, Raw(self.d) as b:
            self.assertEqual(a.ask("GET /live HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)
            t = time.monotonic()
            self.assertTrue(a.ended(9))
            self.assertGreater(time.monotonic() - t, 2.5)
            self.assertTrue(b.ended(9))

    def test_slow_reader(self):
        """A reader that takes nothing is cut off; the engine goes on for others."""
        before = self.d.metric("stepd:stalled_readers_total")
        with Raw(self.d) as r:
            r.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            r.send(request(body(300000, stream=True)))
            r.until(b"data: ")
            self.assertEqual(self.d.post("/v1/completions", json.loads(body(50)))[0], 200)
            self.assertTrue(wait_for(lambda: self.d.metric("stepd:stalled_readers_total") > before, 8))
        self.idle()


class Vanish(Case):
    """Clients that leave in every state."""
    args = ("--max-connections-per-address", "0")

    def fds(self):
        return len(os.listdir(f"/proc/{self.d.p.pid}/fd"))

    def test_vanish(self):
        self.d.post("/v1/completions", json.loads(body(2)))
        self.idle()
        fds, aborted = self.fds(), self.d.metric("stepd:requests_aborted_total")
        for i in range(200):
            r = Raw(self.d)
            r.send(request(body(800000, stream=i % 2 == 0)))
            if i % 2 == 0 and i % 3:
                r.until(b"data: ")
            r.reset() if i % 4 == 0 else r.close()
        self.idle(4)
        self.assertTrue(wait_for(lambda: self.fds() <= fds, 3), (fds, self.fds()))
        self.assertGreaterEqual(self.d.metric("stepd:requests_aborted_total") - aborted, 140)
        self.assertGreater(self.d.metrics()['vllm:request_success_total{model_name="m",engine="0",finished_reason="abort"}'], 0)

    def test_vanish_early(self):
        """In the head, in the body, before any byte."""
        fds = self.fds()
        for i in range(60):
            r = Raw(self.d)
            r.send(request(body(4))[:i * 3])
            r.reset() if i % 2 else r.close()
        self.idle()
        self.assertTrue(wait_for(lambda: self.fds() <= fds + 1, 3))

    def test_silent_close(self):
        """A FIN without reset while the answer is not there yet: found by asking."""
        r = Raw(self.d)
        r.send(request(body(1000000)))
        self.assertTrue(wait_for(lambda: self.d.metric("vllm:num_requests_running") == 1))
        r.close()
        t = time.monotonic()
        self.idle()
        self.assertLess(time.monotonic() - t, 2.0 * SLOW)

    def test_half_close(self):
        """Only the sending half is closed: the answer is still wanted."""
        for stream in (False, True):
            with Raw(self.d) as r:
                r.send(request(body(60000, stream=stream)))
                r.s.shutdown(socket.SHUT_WR)
                got = r.answer()
                if got[0] == 100:
                    got = r.answer()
                self.assertEqual(got[0], 200)
                if stream:
                    self.assertTrue(got[2].endswith(b"data: [DONE]\n\n"))
                else:
                    self.assertEqual(json.loads(got[2])["usage"]["completion_tokens"], 60000)

    def test_many(self):
        """1000 idle connections and 64 streams at once."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        idle = [Raw(self.d) for _ in range(1000)]
        for r in idle[:200]:
            self.assertEqual(r.ask("GET /live HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)
        streams = [Raw(self.d).send(request(body(300, stream=True))) for _ in range(64)]
        for r in streams:
            s, h, b = r.answer()
            self.assertEqual(s, 200)
            self.assertEqual(b.count(b"data: "), 302)
            r.close()
        self.assertGreaterEqual(self.d.metric("stepd:connections"), 1000)
        for r in idle:
            r.close()
        self.assertTrue(wait_for(lambda: self.d.metric("stepd:connections") < 10, 5))

    def test_connection_close_mid_body(self):
        with Raw(self.d) as r:
            r.send(request(body(4))[:-5])
            r.s.shutdown(socket.SHUT_WR)
            self.assertTrue(r.ended())


class Queue(unittest.TestCase):
    def test_full(self):
        with start("--max-sequences", "1", "--max-queue", "1") as d:
            a, b = Raw(d), Raw(d)
            a.send(request(body(1000000, stream=True)))
            a.until(b"data: ")
            b.send(request(body(1000000)))
            self.assertTrue(wait_for(lambda: d.metric("vllm:num_requests_waiting") == 1))
            with Raw(d) as r:
                s, h, got = r.ask(request(body(1)))
                self.assertEqual(s, 429, got)
                self.assertGreaterEqual(int(h["retry-after"]), 1)
                self.assertEqual(json.loads(got)["error"]["type"], "rate_limit_error")
            b.close()  # queued, then gone
            self.assertTrue(wait_for(lambda: d.metric("vllm:num_requests_waiting") == 0))
            a.close()

    def test_fds_used_up(self):
        """More clients than descriptors: some wait, none is lost for good."""
        with start(env={}, *("--max-connections", "20")) as d:
            first = [Raw(d) for _ in range(20)]
            late = [Raw(d) for _ in range(10)]
            for r in late:
                r.send("GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.3)
            for r in first:
                r.close()
            for r in late:
                self.assertEqual(r.answer()[0], 200)
                r.close()


class Life(unittest.TestCase):
    def test_drain(self):
        """SIGTERM under load: what runs is finished, nothing new is taken, exit 0."""
        d = start("--max-unsent-bytes", "512MiB")  # the null device outruns every reader
        rs = [Raw(d).send(request(body(100000 // SLOW, stream=i % 2 == 0))) for i in range(6)]
        keep = Raw(d)
        self.assertEqual(keep.ask("GET /live HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)
        self.assertTrue(wait_for(lambda: d.metric("vllm:num_requests_running") == 6))
        d.p.send_signal(signal.SIGTERM)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(Raw.answer, rs))
        for i, (s, h, b) in enumerate(answers):
            self.assertEqual(s, 200)
            if i % 2 == 0:
                self.assertEqual(b[-14:], b"data: [DONE]\n\n", (len(b), b[-300:]))
            else:
                self.assertEqual(json.loads(b)["usage"]["completion_tokens"], 100000 // SLOW)
        self.assertTrue(keep.ended())
        self.assertEqual(d.p.wait(20 * SLOW), 0)
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", d.port), timeout=1)

    def test_drain_limit(self):
        """What is not ready at the drain limit ends with an error object."""
        d = start("--drain-timeout", "300ms", "--max-sequences", "1", "--step-tokens", "16")
        with Raw(d) as r, Raw(d) as q:
            r.send(request(body(1000000, stream=True)))
            r.until(b"data: ")
            q.send(request(body(1000000)))
            self.assertTrue(wait_for(lambda: d.metric("vllm:num_requests_waiting") == 1))
            t = time.monotonic()
            d.p.send_signal(signal.SIGTERM)
            end = b""
            while True:
                part = r.s.recv(65536)
                if not part:
                    break
                end = (end + part)[-3000:]
            if b"[DONE]" not in end:
                self.assertIn(b'"error"', end)
            s, h, b = q.answer()
            self.assertIn(s, (200, 503))
            self.assertEqual(d.p.wait(20 * SLOW), 0)
            self.assertLess(time.monotonic() - t, 4 * SLOW)

    def test_second_signal(self):
        d = start("--drain-timeout", "600", "--max-sequences", "1")
        with Raw(d) as r:
            r.send(request(body(1000000, stream=True)))
            r.until(b"data: ")
            d.p.send_signal(signal.SIGINT)
            time.sleep(0.05)
            if d.p.poll() is None:
                d.p.send_signal(signal.SIGINT)
            self.assertEqual(d.p.wait(5 * SLOW), 0)

    def test_hangup(self):
        keys = os.path.join(DIR.name, "keys")
        with open(keys, "w") as f:
            f.write("# keys\nsk-a\n")
        with start("--api-key-file", keys) as d:
            def ok(key):
                return d.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
            self.assertTrue(ok("sk-a"))
            with open(keys, "w") as f:
                f.write("sk-b\n")
            d.p.send_signal(signal.SIGHUP)
            self.assertTrue(wait_for(lambda: ok("sk-b") and not ok("sk-a")))
            for bad in (None, "", "x" * 5000):
                if bad is None:
                    os.unlink(keys)
                else:
                    with open(keys, "w") as f:
                        f.write(bad)
                d.p.send_signal(signal.SIGHUP)
                time.sleep(0.1)
                self.assertTrue(ok("sk-b"))
            self.assertIn("the old keys stay", d.output())

    def test_notify(self):
        path = os.path.join(DIR.name, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(path)
            s.settimeout(10 * SLOW)
            with start(env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}) as d:
                while b"READY=1" not in s.recv(500):
                    pass  # a slow start sends the watchdog's lines first
                self.assertEqual(s.recv(500), b"WATCHDOG=1\n")
                d.p.send_signal(signal.SIGTERM)
                got = b""
                while b"STOPPING=1" not in got:
                    got = s.recv(500)

    def test_socket_activation(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            code = ("import os,sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID']=str(os.getpid()); "
                    "os.environ['LISTEN_FDS']='1'; os.execv(sys.argv[2], sys.argv[2:])")
            p = subprocess.Popen([sys.executable, "-c", code, str(s.fileno()), STEPD, "serve", "--device", "null", MODEL],
                                 pass_fds=[s.fileno()], stderr=subprocess.DEVNULL)
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=10 * SLOW)
                c.request("GET", "/live")
                self.assertEqual(c.getresponse().status, 200)
                c.close()
            finally:
                p.terminate()
                self.assertEqual(p.wait(10 * SLOW), 0)


class Listen(unittest.TestCase):
    def run_serve(self, *args):
        p = subprocess.run([STEPD, "serve", "--device", "null", *args], capture_output=True, text=True, timeout=20 * SLOW)
        return p.returncode, p.stderr

    def test_refusals(self):
        with start() as d:
            rc, text = self.run_serve(MODEL, "--port", str(d.port))
            self.assertEqual(rc, 1)
            self.assertIn("in use", text)
        port = ("--port", str(free_port()))
        for args, part in ((["--prot", "1"], "did you mean 'port'"), ([*port], "no model"),
                           ([*port, "/nonexistent.gguf"], "nonexistent"), (["--host", "no.such.host.invalid", MODEL], "host"),
                           ([*port, "--api-key-file", "/nonexistent", MODEL], "api-key-file"),
                           ([*port, MODEL, MODEL], "two models"),
                           ([*port, os.path.join(TOP, "tests/data/gguf-tiny/bad-short-header.gguf")], "")):
            rc, text = self.run_serve(*args)
            self.assertEqual(rc, 2, (args, text))
            self.assertIn(part, text)
            self.assertIn("stepd: ", text)

    def test_unix_socket(self):
        path = os.path.join(DIR.name, "s")
        with socket.socket(socket.AF_UNIX) as dead:  # a stale file
            dead.bind(path)
        with start("--unix-socket", path) as d:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                self.assertEqual(Raw(d, s).ask(request(body(2)))[0], 200)
            with socket.socket(socket.AF_UNIX) as s:  # leaves while it runs
                s.connect(path)
                s.sendall(request(body(1000000)))
                self.assertTrue(wait_for(lambda: d.metric("vllm:num_requests_running") == 1))
            self.assertTrue(wait_for(lambda: d.metric("vllm:num_requests_running") == 0))
            rc, text = self.run_serve(MODEL, "--port", "0", "--unix-socket", path)
            self.assertEqual((rc, "in use" in text), (1, True), text)
        self.assertFalse(os.path.exists(path))
        with open(path, "w") as f:
            f.write("precious")
        rc, text = self.run_serve(MODEL, "--port", "0", "--unix-socket", path)
        self.assertEqual((rc, "not a socket" in text), (2, True), text)
        os.unlink(path)

    def test_ipv6(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as e:
            self.skipTest(f"no IPv6 here: {e}")
        for host, probe in (("::1", ["::1"]), ("::", ["::1", "127.0.0.1"]), ("[::1]", ["::1"])):
            d = start("--host", host, ready=False)
            try:
                self.assertTrue(wait_for(lambda: "ready on http://[" in d.output(), 10), d.output())
                for p in probe:
                    with socket.create_connection((p, d.port), timeout=5) as s:
                        self.assertEqual(Raw(d, s).ask("GET /live HTTP/1.1\r\nHost: x\r\n\r\n")[0], 200)
            finally:
                self.assertEqual(d.stop(), 0)

    def test_tls(self):
        key, cert = os.path.join(DIR.name, "k.pem"), os.path.join(DIR.name, "c.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-subj", "/CN=localhost", "-keyout", key, "-out", cert, "-days", "2"],
                       check=True, capture_output=True)
        ctx = ssl.create_default_context()
        ctx.check_hostname = False
        ctx.verify_mode = ssl.CERT_NONE
        d = start("--tls-cert", cert, "--tls-key", key, ready=False)

        def wrap():
            return Raw(d, ctx.wrap_socket(socket.create_connection(("127.0.0.1", d.port), timeout=10 * SLOW)))
        try:
            self.assertTrue(wait_for(lambda: "ready on https://127" in d.output(), 10), d.output())
            with wrap() as r:
                self.assertEqual(r.ask(request(body(3)))[0], 200)
                s, h, b = r.ask(request(body(3000, stream=True)))
                self.assertTrue(b.endswith(b"data: [DONE]\n\n"))
            for _ in range(20):
                r = wrap()
                r.send(request(body(1000000, stream=True)))
                r.until(b"data: ")
                r.reset()
            with wrap() as r:
                def busy():
                    return b'running{model_name="m",engine="0"} 0\n' in r.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")[2]
                self.assertTrue(wait_for(busy, 4))
        finally:
            self.assertEqual(d.stop(), 0)
        rc, text = self.run_serve(MODEL, "--port", "0", "--tls-cert", key, "--tls-key", cert)
        self.assertEqual(rc, 2, text)


class Threads(Case):
    def test_concurrent(self):
        """Many clients at once, whole and streamed, on kept connections: all right, all the same."""
        texts, errors = set(), []

        def work(i):
            try:
                with Raw(self.d) as r:
                    for j in range(10):
                        stream = (i + j) % 2 == 0
                        s, h, b = r.ask(request(body(30, seed=5, temperature=1, stream=stream)))
                        if stream:
                            frames = [json.loads(f[6:]) for f in b.decode().split("\n\n") if f.startswith("data: {")]
                            texts.add("".join(f["choices"][0]["text"] for f in frames))
                        else:
                            texts.add(json.loads(b)["choices"][0]["text"])
            except Exception as e:  # noqa: BLE001
                errors.append(repr(e))
        ts = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for t in ts:
            t.start()
        for t in ts:
            t.join()
        self.assertEqual(errors, [])
        self.assertEqual(len(texts), 1)
        self.idle()


if __name__ == "__main__":
    unittest.main()
