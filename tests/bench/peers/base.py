"""A server under test: started with its whole process group, asked until it answers, held still while others are measured, stopped."""
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOP = os.path.dirname(os.path.dirname(BENCH))


class Failed(Exception):
    """A server that does not start or does not answer; the text is its last output."""


class Job:
    """What a server must be able to hold: a model file, and so many sequences of so many tokens each."""

    def __init__(self, model, slots, tokens, port, realtime=0):
        self.model, self.slots, self.tokens, self.port, self.realtime = model, slots, tokens, port, realtime
        self.threads = len(os.sched_getaffinity(0))


class Peer:
    """Subclasses say `name`, `venv` (None: none needed) and give command(job) -> (argv, environment).

    A child that must load an interpreter first prints a line of JSON when that is done: {"loaded": time, "rss_kib": n,
    "settings": text}; start-up time and memory then count from there, for they are not the engine's."""
    name = venv = None
    start_limit = 120
    ours = keep = False  # keep: started once for all groups of loads, with room for the largest

    @classmethod
    def missing(cls):
        """Why this peer cannot run here, or None."""
        if not cls.venv or os.path.exists(os.path.join(TOP, cls.venv, ".ready")):
            return None
        why = os.path.join(TOP, cls.venv, ".failed")
        if os.path.exists(why):
            with open(why) as f:
                return "not installed: " + " ".join(f.read().split())[-300:]
        return f"not installed (no {cls.venv}; conf/setup.sh bench makes it)"

    @classmethod
    def python(cls):
        return os.path.join(TOP, cls.venv, "bin", "python")

    @classmethod
    def prepare(cls, model):
        """Work before any timing, such as a conversion of the weights."""

    @staticmethod
    def made(model, ext):
        """Where what is made of the model's file lies."""
        return os.path.join(TOP, "build", "bench", os.path.splitext(os.path.basename(model))[0] + ext)

    @classmethod
    def convert(cls, script, model, out):
        """out by a script of this folder in the peer's environment, unless it is there."""
        if os.path.exists(out):
            return
        os.makedirs(os.path.dirname(out), exist_ok=True)
        r = subprocess.run([cls.python(), os.path.join(BENCH, script), model, out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, timeout=600)
        if r.returncode:
            raise Failed(f"{cls.name}: {script}: {r.stdout[-2000:]}")

    def __init__(self, job):
        self.job, self.settings, self.base_kib = job, "", 0
        self.url = f"http://127.0.0.1:{job.port}"
        self.model = "bench"
        argv, env = self.command(job)
        if job.realtime:
            argv = ["chrt", "-r", str(job.realtime), *argv]
        self.log = tempfile.TemporaryFile()
        began = time.time()
        self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, cwd=TOP,
                                  env=dict(os.environ, **env), start_new_session=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.reader, daemon=True).start()
        try:
            self.answered(began)
        except BaseException:
            self.stop()
            raise

    def reader(self):
        for line in self.p.stdout:
            if line.startswith(b'{"loaded"'):
                self.lines.put(json.loads(line))
            else:
                self.log.write(line)
                self.log.flush()

    def note(self):
        """Take what the child said of itself."""
        while not self.lines.empty():
            j = self.lines.get()
            self.loaded, self.base_kib, self.settings = j["loaded"], j["rss_kib"], j["settings"]

    def fail(self, what):
        self.log.flush()
        self.log.seek(0)
        raise Failed(f"{self.name}: {what}: {self.log.read().decode('utf-8', 'replace')[-3000:]}")

    def ask(self, content, tokens):
        body = json.dumps({"model": self.model, "max_tokens": tokens, "temperature": 0,
                           "messages": [{"role": "user", "content": content}]}).encode()
        req = urllib.request.Request(self.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(req, timeout=120) as r:
            return json.load(r)

    def settle(self):
        """Until it answers again: requests that a time limit cut are given up, or done, and not in the next load's way."""
        try:
            self.ask("Hi", 1)
        except (OSError, ValueError):
            pass

    def answered(self, began):
        """`start_s`: from the start to the first answered token."""
        self.loaded = began
        while time.time() < began + self.start_limit:
            if self.p.poll() is not None:
                self.fail(f"ended with {self.p.returncode}")
            try:
                self.ask("Hi", 1)
                end = time.time()
                self.note()
                self.start_s = end - self.loaded
                return
            except urllib.error.HTTPError as e:
                if e.code not in (503, 404):
                    self.fail(f"HTTP {e.code}: {e.read().decode('utf-8', 'replace')[:300]}")
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.01)
        self.fail(f"no answer in {self.start_limit} s")

    def members(self):
        """Processes of the server's session."""
        out = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat") as f:
                        if int(f.read().rpartition(")")[2].split()[3]) == self.p.pid:
                            out.append(int(name))
                except OSError:
                    pass
        return out

    def memory_mb(self):
        """Proportional resident memory of all its processes, less what the bare interpreter took."""
        kib = 0
        for pid in self.members():
            try:
                with open(f"/proc/{pid}/smaps_rollup") as f:
                    kib += next(int(line.split()[1]) for line in f if line.startswith("Pss:"))
            except OSError:
                pass
        return (kib - self.base_kib) * 1024 / 1e6

    def signal(self, what):
        for pid in self.members():
            try:
                os.kill(pid, what)
            except ProcessLookupError:
                pass

    def hold(self):
        self.signal(signal.SIGSTOP)

    def go(self):
        self.signal(signal.SIGCONT)

    def stop(self):
        self.go()
        self.p.terminate()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            pass
        self.signal(signal.SIGKILL)
        self.p.wait()
