#!/usr/bin/env python3
"""What is installed beside the binary: the unit (verified, scored, and its confinement tried on the real daemon), the
account file, the dashboard against the metrics that exist, the compose file against the files that exist."""
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
import daemon  # noqa: E402
from daemon import Daemon  # noqa: E402

EXPOSURE_MAX = 2.0


def run(*cmd, ok=True, **kw):
    r = subprocess.run(cmd, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **kw)
    if ok and r.returncode:
        raise AssertionError(f"{' '.join(cmd)} ended with {r.returncode}:\n{r.stdout[-4000:]}")
    return r.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="stepd-install-")
        cls.install()
        cls.usr = cls.dir.name + "/usr/local"
        cls.unit = cls.usr + "/lib/systemd/system/stepd.service"
        with lzma.open(os.path.join(TOP, "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz")) as f:
            cls.model = os.path.join(cls.dir.name, "tiny.gguf")
            with open(cls.model, "wb") as out:
                out.write(f.read())

    @classmethod
    def install(cls):
        run("make", "-s", "install", "DESTDIR=" + cls.dir.name, "PREFIX=/usr/local",
            env={k: v for k, v in os.environ.items() if k not in ("VARIANT", "MAKEFLAGS", "MAKELEVEL")})

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def test_files(self):
        out = run(self.usr + "/bin/stepd", "version")
        self.assertRegex(out, r"^stepd \d+\.\d+\.\d+")
        for f in ("share/stepd/models.ini", "share/stepd/stepd.ini", "share/stepd/grafana.json", "lib/sysusers.d/stepd.conf",
                  "share/doc/stepd/README.md", "share/doc/stepd/operations.md", "share/doc/stepd/LICENSE"):
            self.assertTrue(os.path.isfile(f"{self.usr}/{f}"), f)

    def test_installed_settings(self):
        """They name the default model, and installing again keeps what an operator changed."""
        ini = self.dir.name + "/etc/stepd/stepd.ini"
        out = run(self.usr + "/bin/stepd", "serve", "--config", ini, "--print-config")
        self.assertIn("\nmodel = smollm2-135m\n", out)
        with open(ini, "a") as f:
            f.write("log-level = warn\n")
        self.install()
        out = run(self.usr + "/bin/stepd", "serve", "--config", ini, "--print-config")
        self.assertIn("\nlog-level = warn\n", out)
        with open(self.unit) as f:
            self.assertIn("--config /etc/stepd/stepd.ini", f.read())

    def local_unit(self):
        """The unit with the programs that it starts where they lie now."""
        with open(self.unit) as f:
            text = f.read()
        self.assertIn("ExecStart=/usr/local/bin/stepd serve", text)
        path = os.path.join(self.dir.name, "stepd.service")
        with open(path, "w") as f:
            f.write(text.replace("/usr/local", self.usr))
        return path

    def test_unit_is_clean(self):
        out = run("systemd-analyze", "verify", "--man=no", self.local_unit())
        self.assertEqual([line for line in out.splitlines() if "stepd" in line], [])

    def test_unit_notices_a_mistake(self):
        path = self.local_unit()
        with open(path, "a") as f:
            f.write("\n[Service]\nProtectSysten=strict\n")
        out = run("systemd-analyze", "verify", "--man=no", path, ok=False)
        self.assertIn("ProtectSysten", out)

    def test_unit_exposure(self):
        out = run("systemd-analyze", "security", "--offline=yes", "--no-pager", self.local_unit())
        m = re.search(r"Overall exposure level for stepd.service: ([\d.]+)", out)
        self.assertTrue(m, out)
        print(f"exposure of the unit: {m.group(1)}")
        self.assertLessEqual(float(m.group(1)), EXPOSURE_MAX, out)

    def test_account_file(self):
        for folder in ("etc", "usr/lib/sysusers.d"):
            os.makedirs(os.path.join(self.dir.name, "root", folder), exist_ok=True)
        out = run("systemd-sysusers", "--dry-run", "--root=" + self.dir.name + "/root", self.usr + "/lib/sysusers.d/stepd.conf")
        self.assertIn("stepd", out)

    def confined(self, *args, model):
        """The daemon under the unit's system call filter."""
        wrap = os.path.join(self.dir.name, "confined")
        with open(wrap, "w") as f:
            f.write(f'#!/bin/sh\nexec {sys.executable} {TOP}/tests/deploy/confine.py {self.unit} {self.usr}/bin/stepd "$@"\n')
        os.chmod(wrap, 0o755)
        before, daemon.STEPD = daemon.STEPD, wrap
        try:
            return Daemon(*args, model=model)
        finally:
            daemon.STEPD = before

    def test_confinement_bites(self):
        """The filter is really in force: what the unit forbids fails, and without it succeeds."""
        code = "import mmap; mmap.mmap(-1, 4096, prot=7); print('mapped')"
        self.assertIn("mapped", run(sys.executable, "-c", code))
        out = run(sys.executable, TOP + "/tests/deploy/confine.py", self.unit, sys.executable, "-c", code, ok=False)
        self.assertNotIn("mapped", out)
        self.assertIn("PermissionError", out)

    def test_works_confined(self):
        """Same bytes with and without the confinement: no pattern needs memory that is writable and executable, and no system
        call is missing, whether for pinning threads or for the CPU's matrix unit."""
        asks = [dict(messages=[{"role": "user", "content": t}], temperature=0, max_tokens=12, ignore_eos=True)
                for t in ("Hello there, it's 1234567 o'clock!", "naïve café — 東京 ٣٤", "x" * 3000)]
        model = daemon.SMOLLM2 if os.path.exists(daemon.SMOLLM2) else self.model
        texts, backends = [], []
        for start in (lambda: Daemon(model=model), lambda: self.confined(model=model)):
            with start() as d:
                answers = [d.post("/v1/chat/completions", dict(a, model="m")) for a in asks]
                self.assertEqual([s for s, _ in answers], [200] * len(asks), answers)
                texts.append([a["choices"][0]["message"]["content"] for _, a in answers])
                self.assertEqual(d.request("GET", "/metrics")[0], 200)
                backends.append(re.search(r'backend="([^"]*)"', d.output()).group(1))
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(backends[0], backends[1], "the confinement takes no instruction set away")

    def test_dashboard_metrics_exist(self):
        with open(self.usr + "/share/stepd/grafana.json") as f:
            board = json.load(f)
        text = json.dumps([t["expr"] for p in board["panels"] for t in p.get("targets", [])]
                          + [v["query"] for v in board["templating"]["list"] if "query" in v])
        asked = set(re.findall(r"\b(?:(?:vllm|stepd):|process_)\w+", text))
        self.assertGreater(len(asked), 10)
        with Daemon("--device", "null", model=self.model) as d:
            self.assertEqual(d.post("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 3})[0], 200)
            have = {name.split("{")[0] for name in d.metrics()}
        with Daemon(model=os.path.join(TOP, "models", "tiny-t2i")) as d:  # what only pictures have
            have |= {name.split("{")[0] for name in d.metrics()}
        self.assertEqual(sorted(asked - have), [])

    def test_compose(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not there (conf/setup.sh test)")
        here = os.path.join(TOP, "docker")

        def load(name):
            with open(os.path.join(here, name)) as f:
                return yaml.safe_load(f)

        compose = load("compose.yml")
        for name, service in compose["services"].items():
            if "build" in service:
                top = os.path.join(here, service["build"]["context"])
                self.assertTrue(os.path.isfile(os.path.join(top, service["build"]["dockerfile"])), name)
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue(os.path.isfile(os.path.join(here, source)), source)
                else:
                    self.assertIn(source, compose["volumes"])
        target = load("prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"][0]
        self.assertIn(target.split(":")[0], compose["services"])
        url = load("grafana-provision.yml")["datasources"][0]["url"]
        self.assertIn(re.match(r"http://([\w-]+):", url).group(1), compose["services"])
        folder = load("grafana-dashboards.yml")["providers"][0]["options"]["path"]
        self.assertTrue(any(v.split(":")[1].startswith(folder + "/") for v in compose["services"]["grafana"]["volumes"]))
        with open(os.path.join(TOP, "conf", "grafana.json")) as f:
            self.assertIn(load("grafana-provision.yml")["datasources"][0]["uid"], f.read())


if __name__ == "__main__":
    if not shutil.which("systemd-analyze"):
        print("skipped: systemd-analyze is not installed (conf/setup.sh test)")
        sys.exit(77)
    unittest.main()
