#!/usr/bin/env python3
"""The documents against the program: generated ones are up to date; metrics, endpoints, request fields and options named in
the hand-written ones exist, and those that exist are named; links lead somewhere."""
import errno
import glob
import importlib.util
import lzma
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SLOW, STEPD, Daemon  # noqa: E402


def read(name):
    with open(os.path.join(TOP, name)) as f:
        return f.read()


def stepd(*args):
    return subprocess.run([STEPD, *args], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def tiny_model(folder):
    model = os.path.join(folder, "tiny.gguf")
    with lzma.open(os.path.join(TOP, "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz")) as f, open(model, "wb") as out:
        out.write(f.read())
    return model


def png(side, alpha):
    """A square grey PNG, its upper half with this alpha."""
    rows = b"".join(b"\0" + bytes([128, 128, 128, alpha if y < side // 2 else 255]) * side for y in range(side))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def chat_template(folder):
    path = os.path.join(folder, "chat.jinja")
    with open(path, "w") as f:
        f.write("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    return path


class Examples(unittest.TestCase):
    """The README's examples, as they stand, against a server without weights."""

    def example(self, kind):
        text = re.search("```" + kind + r"\n(.*?)```", read("README.md"), re.S).group(1)
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{self.d.port}")

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.d = Daemon("--device", "null", "--chat-template", chat_template(self.dir.name), model=tiny_model(self.dir.name),
                        name="smollm2-135m")

    def tearDown(self):
        self.d.__exit__(None)
        self.dir.cleanup()

    def run_example(self, *cmd, **kw):
        r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * SLOW, **kw)
        self.assertEqual(r.returncode, 0, r.stdout)
        return r.stdout

    def answered(self):
        self.assertEqual(self.d.metric("vllm:request_success_total"), 1)

    def test_curl(self):
        text = re.search(r"^(curl .*?\}'\n)", read("README.md"), re.S | re.M).group(1)
        out = self.run_example("sh", "-c", text.replace("curl ", "curl -sSf ", 1).replace("127.0.0.1:8000", f"127.0.0.1:{self.d.port}"))
        self.assertIn('"finish_reason"', out)
        self.answered()

    def test_curl_of_other_apis(self):
        for name, part in (("docs/responses.md", '"output_tokens"'), ("docs/messages.md", '"stop_reason"')):
            text = re.search(r"```sh\n(.*?)```", read(name), re.S).group(1)
            self.assertIn(part, self.run_example("sh", "-c", text.replace("curl ", "curl -sSf ", 1).replace("127.0.0.1:8000", f"127.0.0.1:{self.d.port}")))

    def test_python(self):
        if not importlib.util.find_spec("openai"):
            self.skipTest("the openai package is not there (conf/setup.sh test)")
        self.run_example(sys.executable, "-c", self.example("python"))
        self.answered()

    def test_node(self):
        folder = os.path.join(TOP, "tests", "api", "node")
        node = os.path.join(TOP, ".venv", "bin", "node")
        if not os.path.isdir(folder + "/node_modules/openai") or not os.path.exists(node):
            self.skipTest("the Node SDK is not there (conf/setup.sh test)")
        self.run_example(node, "--input-type=module", "-e", self.example("js"), cwd=folder)
        self.answered()


class ImageExamples(unittest.TestCase):
    """The examples of images.md, as they stand, against the model that comes with the sources."""

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.d = Daemon("--device", "cpu", model=os.path.join(TOP, "models", "tiny-t2i"), name="tiny-t2i")
        for name, alpha in (("photo.png", 255), ("mask.png", 0)):
            with open(os.path.join(cls.dir.name, name), "wb") as f:
                f.write(png(64, alpha))

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)
        cls.dir.cleanup()

    def examples(self, kind):
        found = re.findall("```" + kind + r"\n(.*?)```", read("docs/images.md"), re.S)
        self.assertTrue(found)
        return [x.replace("127.0.0.1:8000", f"127.0.0.1:{self.d.port}") for x in found]

    def run_example(self, *cmd):
        r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * SLOW, cwd=self.dir.name)
        self.assertEqual(r.returncode, 0, r.stdout)
        return r.stdout

    def test_curl(self):
        for text in self.examples("sh"):
            out = self.run_example("sh", "-c", text.replace("curl ", "curl -sSf ", 1))
            self.assertIn('"b64_json":"iVBORw0KGgo', out)

    def test_python(self):
        if not importlib.util.find_spec("openai"):
            self.skipTest("the openai package is not there (conf/setup.sh test)")
        for text in self.examples("python"):
            self.assertIn("image_generation.completed", self.run_example(sys.executable, "-c", text))
        with open(os.path.join(self.dir.name, "picture-1.png"), "rb") as f:
            self.assertEqual(f.read(8), b"\x89PNG\r\n\x1a\n")


class Docs(unittest.TestCase):
    def test_generated(self):
        for name, kind in (("docs/configuration.md", "--markdown"), ("conf/stepd.ini", "--ini")):
            self.assertEqual(read(name), stepd("options", kind), f"{name} is old: make docs")

    def test_models(self):
        out = subprocess.run([sys.executable, os.path.join(TOP, "tests/models/list_models.py")], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertTrue("\n" + out + "<!-- /models -->" in read("docs/models.md"), "docs/models.md is old: make docs")

    def test_options(self):
        options = set(re.findall(r"^OPT\((\w+),", read("conf/options.def"), re.M))
        named = set(re.findall(r"`([a-z]+(?:-[a-z0-9]+)+)`", read("docs/operations.md") + read("docs/api.md") + read("docs/images.md") + read("docs/audio.md")))
        # Words with dashes that are no options.
        named -= {"no-new-privileges", "x-request-id", "x-api-key"}
        self.assertEqual(sorted(n for n in named if n.replace("-", "_") not in options), [])

    def test_metrics(self):
        text = set(re.findall(r"`((?:(?:vllm|stepd):|process_)\w+)`", read("docs/operations.md")))
        with tempfile.TemporaryDirectory() as d:
            with Daemon("--device", "null", model=tiny_model(d)) as d:
                out = d.request("GET", "/metrics")[2].decode()
        have = set(re.findall(r"^# TYPE (\S+)", out, re.M))
        self.assertEqual(sorted(text ^ have), [], "operations.md and /metrics differ")

    def test_endpoints_and_fields(self):
        api = "".join(read(f"docs/{n}.md") for n in ("api", "tools", "structured-output"))
        for path in re.findall(r'^ROUTE\("\w+", "([^"]+)"', read("api/routes.def"), re.M):
            self.assertIn(path.replace("*", "NAME"), api)
        for source in ("api/chat.c", "api/completions.c", "api/gen_params.c"):
            tables = re.findall(r"const char \*const (?:known|gen_fields|no)\[\] = \{(.*?)NULL\s*\}", read(source), re.S)
            self.assertTrue(tables, source)
            for field in re.findall(r'"(\w+)"', "".join(tables)):
                self.assertTrue(f"`{field}" in api or f".{field}`" in api, f"api.md does not name {field} of {source}")

    def test_fields_of_other_apis(self):
        for name, source, table in (("docs/responses.md", "api/responses_params.c", "resp_fields"), ("docs/messages.md", "api/messages_input.c", "msg_fields")):
            fields = re.search(table + r"\[\] = \{(.*?)NULL\s*\}", read(source), re.S).group(1)
            for field in re.findall(r'"(\w+)"', fields):
                self.assertTrue(f"`{field}" in read(name), f"{name} does not name {field}")

    def test_image_fields(self):
        doc = read("docs/images.md")
        tables = re.findall(r"const char \*const (?:img_fields|edits)\[\] = \{(.*?)NULL\s*\}", read("api/images_params.c") + read("api/images.c"), re.S)
        self.assertEqual(len(tables), 2)
        for field in re.findall(r'"(\w+)"', "".join(tables)):
            self.assertIn(f"`{field}`", doc)
        sources = read("api/images.c") + read("api/images_input.c") + read("api/form.c")
        for code in ("invalid_image", "image_too_large", "invalid_multipart"):
            self.assertIn(f'"{code}"', sources)
            self.assertIn(f"`{code}`", doc)

    def test_audio_fields(self):
        doc = read("docs/audio.md")
        fields = re.search(r"stt_fields\[\] = \{(.*?)NULL\s*\}", read("api/audio.c"), re.S).group(1)
        for field in re.findall(r'"(\w+)"', fields):
            self.assertIn(f"`{field}`", doc)
        for code in ("invalid_audio", "audio_too_long", "invalid_multipart"):
            self.assertIn(f'"{code}"', read("api/audio.c") + read("api/form.c"))
            self.assertIn(f"`{code}`", doc)

    def test_error_codes(self):
        codes = set(re.findall(r'"(\w+)"\},$', read("api/error.c"), re.M)) - {"cancelled", "internal_error", "server_error"}
        self.assertGreater(len(codes), 8)
        for code in codes:
            self.assertIn(code, read("docs/api.md"))

    def test_error_texts(self):
        """The messages quoted under "When something is wrong" are those of the sources: the words before the first
        figure or name."""
        table = read("docs/operations.md").split("## When something is wrong")[1]
        sources = "".join(read(f) for d in ("server", "api", "conf", "engine", "engine/load", "engine/models")
                          for f in glob.glob(d + "/*.c", root_dir=TOP))
        sources = re.sub(r'"\s*\n?\s*"', "", sources)  # joined string literals
        sources += os.strerror(errno.EADDRINUSE)
        quotes = [q for line in table.splitlines() if line.startswith("| `") for q in re.findall(r"`([^`]+)`", line.split("|")[1])]
        self.assertGreater(len(quotes), 8)
        for quote in quotes:
            words = max(re.split(r"'[^']*'|\"[^\"]*\"|\b[A-Z]\b|\b[A-Z]{2,}\b|\.\.\.|[();:?]|\bstepd pull\b|unknown option --", quote), key=len).strip()
            self.assertTrue(words in sources, f"no source says: {words} (of: {quote})")

    def test_links(self):
        for name in ["README.md", "CONTRIBUTING.md"] + glob.glob("docs/*.md", root_dir=TOP):
            for link in re.findall(r"\]\(([^)#]+)\)", read(name)):
                if "://" not in link:
                    self.assertTrue(os.path.exists(os.path.join(TOP, os.path.dirname(name), link)), f"{name}: {link}")

    def test_files_named_in_the_readme(self):
        names = set(re.findall(r"\b(?:conf|docker|tests|server|sched|engine|api)/[\w/.-]+\.\w+", read("README.md")))
        self.assertGreater(len(names), 8)
        missing = [n for n in names if not os.path.exists(os.path.join(TOP, n)) and "NAME" not in n and "tests/bench/history" not in n]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
