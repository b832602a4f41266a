#!/usr/bin/env python3
"""`stepd bench` against servers that behave and that do not: what it counts is what was answered."""
import http.server
import json
import os
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, STEPD, free_port  # noqa: E402

FRAME = 'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\ndata: [DONE]\n\n'


class Answer(http.server.BaseHTTPRequestHandler):
    """Three tokens as a chunked stream; `mode` of the server says how it misbehaves."""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        mode = self.server.mode
        if mode == "error":
            body = b'{"error":{"message":"no"}}'
            self.send_response(500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        if mode == "says close":
            self.send_header("Connection", "close")
        self.end_headers()
        for part in [FRAME] * 3 + [USAGE]:
            self.wfile.write(f"{len(part):x}\r\n{part}\r\n".encode())
            if mode == "breaks off":
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")
        if mode == "closes silently":
            self.close_connection = True

    def log_message(self, *_):
        pass


class Bench(unittest.TestCase):
    def bench(self, mode, *args, requests=6):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as s:
            s.mode, s.bodies, s.daemon_threads = mode, [], True
            threading.Thread(target=s.serve_forever, daemon=True).start()
            r = subprocess.run([STEPD, "bench", "--url", f"http://127.0.0.1:{s.server_address[1]}", "--requests", str(requests),
                                "--concurrency", "2", "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               timeout=30 * SLOW)
            s.shutdown()
        return r.returncode, json.loads(r.stdout), r.stderr, s.bodies

    def answered(self, mode):
        rc, j, err, bodies = self.bench(mode)
        self.assertEqual((rc, j["requests"], j["failed"]), (0, 6, 0), err)
        self.assertEqual((j["output_tokens"], j["prompt_tokens"], len(bodies)), (18, 42, 6))

    def test_kept_connection(self):
        self.answered("fine")

    def test_server_that_says_close(self):
        self.answered("says close")

    def test_server_that_closes_silently(self):
        self.answered("closes silently")

    def test_server_that_breaks_off(self):
        rc, j, err, _ = self.bench("breaks off")
        self.assertEqual((rc, j["requests"], j["failed"]), (1, 0, 6))
        self.assertIn("first failure: connection", err)

    def test_server_that_refuses(self):
        rc, j, err, _ = self.bench("error")
        self.assertEqual((rc, j["requests"], j["failed"]), (1, 0, 6))
        self.assertIn("no", err)

    def test_warm_up_is_not_counted(self):
        rc, j, err, bodies = self.bench("fine", "--warmup", "2")
        self.assertEqual((rc, j["requests"], j["output_tokens"], len(bodies)), (0, 6, 18, 8), err)

    def test_prompts_differ_and_repeat_by_seed(self):
        def texts(*args):
            return sorted(b["messages"][0]["content"] for b in self.bench("fine", *args)[3])
        first = texts("--seed", "3")
        self.assertEqual(len(set(first)), 6)
        self.assertEqual(first, texts("--seed", "3"))
        self.assertEqual(set(first) & set(texts("--seed", "4")), set())

    def test_nobody_there(self):
        r = subprocess.run([STEPD, "bench", "--url", f"http://127.0.0.1:{free_port()}", "--requests", "3", "--json"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30 * SLOW)
        self.assertEqual((r.returncode, json.loads(r.stdout)["failed"]), (1, 3))
        self.assertIn("connection refused", r.stderr)


if __name__ == "__main__":
    unittest.main()
