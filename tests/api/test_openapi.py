#!/usr/bin/env python3
"""/openapi.json: a valid document, every route is in it, its fields are those that the parsers know, and each of them is
taken."""
import importlib.util
import json
import os
import re
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import Daemon, tiny_model  # noqa: E402

JSON, FORM = "application/json", "multipart/form-data"
# Where the parsers' tables are: path -> (file, name of the array) ...
TABLES = {
    "/v1/chat/completions": [("api/gen_params.c", "gen_fields"), ("api/chat.c", "known")],
    "/v1/completions": [("api/gen_params.c", "gen_fields"), ("api/completions.c", "known")],
    "/infill": [("api/gen_params.c", "gen_fields"), ("api/infill.c", "known")],
    "/v1/responses": [("api/responses_params.c", "resp_fields")],
    "/v1/messages": [("api/messages_input.c", "msg_fields")],
    "/v1/embeddings": [("api/embed.c", "fields"), ("api/embeddings.c", "known")],
    "/v1/images/generations": [("api/images_params.c", "img_fields")],
    "/v1/images/edits": [("api/images_params.c", "img_fields"), ("api/images.c", "edits")],
    "/v1/audio/transcriptions": [("api/audio.c", "stt_fields")],
    "/v1/audio/translations": [("api/audio.c", "stt_fields")],
}


def read(name):
    with open(os.path.join(TOP, name)) as f:
        return f.read()


def table(file, name):
    text = re.search(r"const char \*const " + name + r"\[\] = \{(.*?)NULL\s*\}", read(file), re.S).group(1)
    return set(re.findall(r'"(\w+)"', text))


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Daemon("--device", "null", "--api-key", "k", model=tiny_model()) as d:
            s, h, body = d.request("GET", "/openapi.json")
        assert s == 200 and h["Content-Type"] == "application/json"
        cls.doc = json.loads(body)

    def properties(self, path):
        return self.doc["paths"][path]["post"]["requestBody"]["content"][FORM if "/audio/" in path else JSON]["schema"]["properties"]

    def test_valid(self):
        if not importlib.util.find_spec("openapi_spec_validator"):
            self.skipTest("skipped: no openapi-spec-validator (conf/setup.sh test)")
        from openapi_spec_validator import OpenAPIV31SpecValidator
        self.assertEqual([e.message for e in OpenAPIV31SpecValidator(self.doc).iter_errors()], [])

    def test_every_route(self):
        routes = {(p.replace("*", "{name}"), m.lower()) for m, p in re.findall(r'^ROUTE\("(\w+)", "([^"]+)"', read("api/routes.def"), re.M)}
        self.assertGreater(len(routes), 10)
        self.assertEqual({(p, m) for p, ops in self.doc["paths"].items() for m in ops}, routes)

    def test_fields_are_the_parsers(self):
        for path, tables in TABLES.items():
            self.assertEqual(set(self.properties(path)), set().union(*(table(*t) for t in tables)), path)
            for name, p in self.properties(path).items():
                self.assertTrue(p["description"], name)

    def test_fields_are_taken(self):
        """No field is unknown to its parser, and null passes for "not given" where the document says so."""
        need = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "model": "m", "max_tokens": 1},
                "/v1/completions": {"prompt": "x", "model": "m", "max_tokens": 1},
                "/v1/responses": {"input": "x", "model": "m", "max_output_tokens": 1},
                "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "model": "m", "max_tokens": 1},
                "/tokenize": {"prompt": "x", "messages": None, "model": "m"}, "/detokenize": {"tokens": [1], "model": "m"}}
        template = os.path.join(TOP, "tests", "data", "openapi-chat.jinja")
        with Daemon("--device", "null", "--chat-template", template, "--strict-fields", "yes", model=tiny_model()) as d:
            for path, body in need.items():
                given = {k: v for k, v in body.items() if v is not None}
                fields = [k for k in self.properties(path) if k not in body]
                s, h, out = d.request("POST", path, {**given, **{k: None for k in fields}})
                self.assertEqual(s, 200, (path, out))
                self.assertIsNone(h["X-Stepd-Warning"])
                s, h, out = d.request("POST", path, {**given, "no_such_field": 1})
                if path.startswith("/v1"):
                    self.assertEqual(s, 400)
        image = {"prompt": "x", "model": "t", "steps": 1}
        with Daemon("--device", "cpu", "--strict-fields", "yes", model=os.path.join(TOP, "models", "tiny-t2i"), name="t") as d:
            path = "/v1/images/generations"
            s, h, out = d.request("POST", path, {**{k: None for k in self.properties(path)}, **image})
            self.assertEqual(s, 200, out[:300])


if __name__ == "__main__":
    unittest.main()
