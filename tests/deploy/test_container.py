#!/usr/bin/env python3
"""Builds docker/Dockerfile.cpu for real and runs the image, on machines without a container daemon: buildah with chroot
isolation, on a base image made by debootstrap. Needs root, buildah, debootstrap, the network and the pulled model; says
why and ends with 77 where one is missing. State is kept in build/deploy."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SMOLLM2, Daemon, free_port  # noqa: E402

WORK = os.path.join(TOP, "build", "deploy")
BASE, IMAGE = "localhost/stepd-test-base", "localhost/stepd-test"
MAX_BYTES = 150_000_000
USER = 65532


def buildah(*args, check=True, **kw):
    cmd = ["buildah", "--root", WORK + "/containers/root", "--runroot", WORK + "/containers/run", "--storage-driver", "vfs"]
    env = dict(os.environ, BUILDAH_ISOLATION="chroot", STORAGE_DRIVER="vfs")
    r = subprocess.run(cmd + list(args), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if check and r.returncode:
        raise AssertionError(f"buildah {' '.join(args)} ended with {r.returncode}:\n{r.stdout[-6000:]}")
    return r.stdout.strip()


def make_base():
    """The minimal system as an image: what `FROM debian:12` gives elsewhere."""
    subprocess.run([os.path.join(TOP, "tests", "deploy", "base.sh"), WORK + "/base"], check=True)
    if BASE in buildah("images", "--format", "{{.Name}}"):
        return
    c = buildah("from", "scratch")
    buildah("copy", "-q", c, WORK + "/base", "/")
    # Certificates for programs that do not look where Debian puts them; the path is the same everywhere.
    for name in ("SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy"):
        if os.environ.get(name):
            buildah("config", "--env", f"{name}={os.environ[name]}", c)
    buildah("commit", "-q", c, BASE)
    buildah("rm", c)


def context(folder):
    """The sources as git sees them, new files included."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=TOP, check=True,
                           stdout=subprocess.PIPE).stdout.decode().split("\0")
    for name in filter(None, names):
        src, dst = os.path.join(TOP, name), os.path.join(folder, name)
        if os.path.isfile(src):
            os.makedirs(os.path.dirname(dst), exist_ok=True)
            shutil.copy2(src, dst)


def children(pid):
    out = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/stat") as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == pid:
                    out += [int(p)] + children(int(p))
        except OSError:
            pass
    return out


class Running(Daemon):
    """The image's own entry point and command, as its own user."""

    def __init__(self, container, port):
        self.port, self.model, self.log = port, "smollm2-135m", tempfile.TemporaryFile()
        cmd = ["buildah", "--root", WORK + "/containers/root", "--runroot", WORK + "/containers/run", "--storage-driver", "vfs",
               "run", "--isolation", "chroot", "-v", os.path.dirname(SMOLLM2) + ":/given:ro", container, "--",
               "/usr/local/bin/stepd", "serve", "smollm2-135m"]
        self.p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.wait_ready(60)

    def pids(self):
        def is_stepd(pid):
            with open(f"/proc/{pid}/comm") as f:
                return f.read().strip() == "stepd"
        return [p for p in children(self.p.pid) if is_stepd(p)]

    def stop(self, *_):
        for p in self.pids():
            os.kill(p, signal.SIGTERM)
        return self.p.wait(60)


class Container(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_base()
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            context(folder)
            start = time.monotonic()
            cls.build_log = buildah("bud", "--isolation", "chroot", "--layers", "--pull-never", "--build-arg", "BASE=" + BASE, "-f",
                                    folder + "/docker/Dockerfile.cpu", "-t", IMAGE, folder)
            print(f"image built in {time.monotonic() - start:.0f} s")
        cls.c = buildah("from", "--pull-never", IMAGE)
        cls.root = buildah("mount", cls.c)

    @classmethod
    def tearDownClass(cls):
        buildah("umount", cls.c, check=False)
        buildah("rm", cls.c, check=False)

    def files(self):
        for folder, _, names in os.walk(self.root):
            for n in names:
                yield os.path.join(folder, n)

    def test_size(self):
        size = sum(os.lstat(f).st_size for f in self.files())
        print(f"image: {size / 1e6:.1f} MB in {len(list(self.files()))} files")
        self.assertLess(size, MAX_BYTES)
        self.assertGreater(size, 1_000_000)

    def test_nothing_but_the_daemon_can_be_run(self):
        def runs(path):
            st = os.lstat(path)
            return os.path.isfile(path) and st.st_mode & 0o111 and ".so" not in os.path.basename(path)
        self.assertEqual([os.path.relpath(f, self.root) for f in self.files() if runs(f)], ["usr/local/bin/stepd"])
        self.assertFalse([f for f in self.files() if f.endswith((".gguf", ".safetensors"))], "no weights in the image")

    def test_settings(self):
        conf = json.loads(buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
        self.assertEqual(conf["User"], f"{USER}:{USER}")
        self.assertEqual(conf["Entrypoint"], ["/usr/local/bin/stepd"])
        self.assertEqual(conf["StopSignal"], "SIGTERM")
        self.assertIn("/models", conf["Volumes"])
        self.assertIn("8000/tcp", conf["ExposedPorts"])
        st = os.stat(self.root + "/models")
        self.assertEqual((st.st_uid, st.st_gid), (USER, USER))

    def test_serves(self):
        port = free_port()
        # buildah, unlike docker, hides a mount below a declared volume: the models lie elsewhere here.
        buildah("config", "--env", f"STEPD_PORT={port}", "--env", "STEPD_MODELS=/given", self.c)
        probe = ["run", "--isolation", "chroot", self.c, "--", "/usr/local/bin/stepd", "health"]
        self.assertIn("no answer", buildah(*probe, check=False))
        with Running(self.c, port) as d:
            with open(f"/proc/{d.pids()[0]}/status") as f:
                uids = next(line for line in f if line.startswith("Uid:")).split()[1:]
            self.assertEqual(set(uids), {str(USER)})
            s, models = d.get("/v1/models")
            self.assertEqual((s, models["data"][0]["id"]), (200, "smollm2-135m"))
            s, answer = d.chat("What is the capital of France?", temperature=0, max_tokens=16)
            self.assertEqual(s, 200, answer)
            self.assertIn("Paris", answer["choices"][0]["message"]["content"])
            self.assertIn("ready", buildah(*probe))


def missing():
    if os.geteuid():
        return "needs root"
    for tool in ("buildah", "debootstrap", "git"):
        if not shutil.which(tool):
            return f"{tool} is not installed (conf/setup.sh deploy)"
    if not os.path.exists(SMOLLM2):
        return f"no model at {SMOLLM2} (make pull)"
    return None


if __name__ == "__main__":
    why = missing()
    if why:
        print("skipped: " + why)
        sys.exit(77)
    os.makedirs(WORK, exist_ok=True)
    unittest.main()
