#!/usr/bin/env python3
"""`stepd health`: exit codes and words, over TCP, a socket file and TLS."""
import http.server
import lzma
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, STEPD, TOP, Daemon, free_port  # noqa: E402

DIR = tempfile.TemporaryDirectory(prefix="stepd-health-")
MODEL = os.path.join(DIR.name, "tiny.gguf")


def health(*args, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STEPD_")}
    r = subprocess.run([STEPD, "health", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20 * SLOW,
                       env=dict(clean, **(env or {})))
    return r.returncode, r.stdout


class Health(unittest.TestCase):
    def check(self, code, word, *args, **kw):
        rc, text = health(*args, **kw)
        self.assertEqual((rc, text.count("\n")), (code, 1), text)
        self.assertIn(word, text)

    def test_ready(self):
        with Daemon("--device", "null", model=MODEL) as d:
            self.check(0, "ready: 200", "--port", str(d.port))
            self.check(0, "ready: 200", "--port", str(d.port), "--host", "0.0.0.0")
            self.check(0, "ready: 200", env={"STEPD_PORT": str(d.port), "STEPD_MODEL": "anything", "http_proxy": "http://127.0.0.1:1"})

    def test_keys_are_not_needed(self):
        with Daemon("--device", "null", "--api-key", "secret", model=MODEL) as d:
            self.check(0, "ready", "--port", str(d.port))

    def test_config_file(self):
        with Daemon("--device", "null", model=MODEL) as d:
            path = os.path.join(DIR.name, "stepd.ini")
            with open(path, "w") as f:
                f.write(f"[network]\nport = {d.port}\n")
            self.check(0, "ready", "--config", path)

    def test_ipv6(self):
        try:
            with Daemon("--device", "null", "--host", "::", model=MODEL) as d:
                self.check(0, "ready", "--port", str(d.port), "--host", "::")
                self.check(0, "ready", "--port", str(d.port), "--host", "::1")
        except AssertionError as e:
            if "Address family not supported" not in str(e) and "Cannot assign" not in str(e):
                raise
            self.skipTest("no IPv6 on this machine")

    def test_socket_file(self):
        sock = os.path.join(DIR.name, "s")
        self.check(1, "no answer from " + sock, "--host", "", "--unix-socket", sock)
        with Daemon("--device", "null", "--unix-socket", sock, model=MODEL):
            self.check(0, "ready", "--host", "", "--unix-socket", sock)

    def test_tls(self):
        key, cert = os.path.join(DIR.name, "key.pem"), os.path.join(DIR.name, "cert.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9",
                        "-subj", "/CN=elsewhere.example", "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
        pair = ("--tls-cert", cert, "--tls-key", key)
        d = Daemon("--device", "null", *pair, model=MODEL, ready=False)
        try:
            for _ in range(200 * SLOW):
                rc, text = health("--port", str(d.port), *pair)
                if rc == 0:
                    break
            self.assertEqual(rc, 0, text + d.output())
            self.check(1, "no", "--port", str(d.port))  # plain HTTP to a TLS port
        finally:
            d.stop()

    def test_nobody_there(self):
        self.check(1, "no answer from http://127.0.0.1:", "--port", str(free_port()))

    def test_not_ready(self):
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(503 if self.path == "/ready" else 200)
                self.end_headers()
                self.wfile.write(b'{"status":"draining",\n"message":"' + b"x" * 5000 + b'"}\n')

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Answer) as s:
            threading.Thread(target=s.serve_forever, daemon=True).start()
            self.check(1, 'not ready: 503 {"status":"draining"', "--port", str(s.server_address[1]))
            s.shutdown()

    def test_no_answer_in_time(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            start = time.monotonic()
            self.check(1, "no answer", "--port", str(s.getsockname()[1]))
            self.assertLess(time.monotonic() - start, 2 * SLOW)

    def test_bad_options(self):
        self.check(2, "unknown option", "--prot", "1")
        self.check(2, "65535", "--port", "70000")


if __name__ == "__main__":
    with lzma.open(os.path.join(TOP, "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz")) as f, open(MODEL, "wb") as out:
        out.write(f.read())
    unittest.main()
