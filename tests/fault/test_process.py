#!/usr/bin/env python3
"""The process among others: descriptors used up, a port or socket file taken, stopped and continued, killed and restarted."""
import json
import os
import resource
import signal
import socket
import subprocess
import time
import unittest

from rig import DIR, SLOW, STEPD, Daemon, completion, free_port, start, tiny_model


def few_fds():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def run(*args):
    r = subprocess.run([STEPD, "serve", "--device", "null", *args, tiny_model()], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30 * SLOW)
    return r.returncode, r.stdout.decode("utf-8", "replace")


def unix_get(path, target="/live"):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10 * SLOW)
        s.connect(path)
        s.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while part := s.recv(65536):
            data += part
    return int(data.split()[1])


class Process(unittest.TestCase):
    def cpu(self, d):
        with open(f"/proc/{d.p.pid}/stat") as f:
            f = f.read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def test_descriptors(self):
        """64 descriptors, 200 connections: the rest waits, the processor is not burnt, and it goes on afterwards."""
        with start(preexec=few_fds) as d:
            self.assertEqual(completion(d)[0], 200)
            socks = []
            for _ in range(200):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex(("127.0.0.1", d.port))
                socks.append(s)
            time.sleep(0.5)
            before = self.cpu(d)
            time.sleep(1)
            self.assertLess(self.cpu(d) - before, 0.5, "busy while connections wait")
            self.assertLessEqual(len(os.listdir(f"/proc/{d.p.pid}/fd")), 64)
            for s in socks:
                s.close()
            self.assertEqual(completion(d)[0], 200)
            self.assertEqual(d.get("/health")[0], 200)

    def test_descriptors_idle_serve(self):
        """With all places taken by silent connections, one that leaves makes room for one that waits."""
        with start(preexec=few_fds) as d:
            socks = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(60)]
            w = socket.create_connection(("127.0.0.1", d.port))
            w.settimeout(10 * SLOW)
            w.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.2)
            for s in socks:
                s.close()
            self.assertTrue(w.recv(100).startswith(b"HTTP/1.1 200"))
            w.close()

    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            code, out = run("--port", str(port))
            self.assertEqual(code, 1, out)
            self.assertRegex(out, f"stepd: .*{port}.*in use")
        with start() as d:
            code, out = run("--port", str(d.port))
            self.assertEqual(code, 1, out)
            self.assertEqual(completion(d)[0], 200)

    def test_unix_socket(self):
        path = os.path.join(DIR.name, "s.sock")
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(path)
        stale.close()
        with start("--unix-socket", path) as d:
            self.assertEqual(unix_get(path), 200)
            code, out = run("--port", "0", "--unix-socket", path)
            self.assertEqual(code, 1, out)
            self.assertRegex(out, "stepd: .*s.sock.*in use by another process")
            self.assertEqual(unix_get(path), 200)  # the refused one left the file alone
            d.p.send_signal(signal.SIGKILL)
            d.p.wait()
            self.assertTrue(os.path.exists(path))
            with start("--unix-socket", path):
                self.assertEqual(unix_get(path), 200)
            self.assertFalse(os.path.exists(path), "left over after a clean stop")
            d.p.returncode = 0  # the kill was ours
        with open(path, "w") as f:
            f.write("precious")
        code, out = run("--port", "0", "--unix-socket", path)
        self.assertEqual(code, 2, out)
        self.assertRegex(out, "not a socket")
        with open(path) as f:
            self.assertEqual(f.read(), "precious")
        os.unlink(path)

    def test_stop_continue(self):
        """Stopped for 5 s in the middle of a stream: it ends as it would have, and nobody is thrown out."""
        with start() as d:
            want = completion(d, max_tokens=3000, seed=1)[1]["choices"][0]["text"]
            c = socket.create_connection(("127.0.0.1", d.port))
            c.settimeout(30 * SLOW)
            data = b'{"model": "m", "prompt": "hello", "max_tokens": 3000, "ignore_eos": true, "seed": 1}'
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(data) + data)
            os.kill(d.p.pid, signal.SIGSTOP)
            time.sleep(5)
            os.kill(d.p.pid, signal.SIGCONT)
            raw = b""
            while part := c.recv(65536):
                raw += part
            c.close()
            self.assertTrue(raw.startswith(b"HTTP/1.1 200"), raw[:200])
            self.assertEqual(json.loads(raw.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"], want)
            self.assertEqual(d.get("/health")[0], 200)
            self.assertEqual(completion(d)[0], 200)

    def test_kill_restart(self):
        """Killed under load and started on the same port, ten times."""
        port = free_port()
        for i in range(10):
            d = start(port=port)
            with self.subTest(i=i):
                self.assertEqual(completion(d)[0], 200)
                busy = []
                for _ in range(4):
                    s = socket.create_connection(("127.0.0.1", port))
                    data = b'{"model": "m", "prompt": "hello", "max_tokens": 100000, "ignore_eos": true, "stream": true}'
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                              b"Content-Length: %d\r\n\r\n" % len(data) + data)
                    busy.append(s)
                busy[0].settimeout(10 * SLOW)
                self.assertTrue(busy[0].recv(10))
                d.p.kill()
                d.p.wait()
                d.log.close()
                for s in busy:
                    s.close()
        with start(port=port) as d:
            self.assertEqual(completion(d)[0], 200)


if __name__ == "__main__":
    unittest.main()
