"""Stands between an SDK and the daemon, passes everything on, and checks each answer and each event on its way: OpenAI's
against the published schemas, Anthropic's against the types of its SDK.

    with Relay(d.url) as r:
        openai.OpenAI(base_url=r.url + "/v1", ...)
    r.bad: what was not as it should be; r.seen: {schema: how many}"""
import collections
import http.client
import http.server
import json
import os
import re
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_images  # noqa: E402
import test_responses  # noqa: E402
import test_schema  # noqa: E402

from jsonschema import Draft202012Validator  # noqa: E402

VECTOR = test_schema.ALL["Embedding"]["properties"]["embedding"]
# `encoding_format: "base64"`, which the published schema of the answer leaves out.
BASE64 = {"anyOf": [VECTOR, {"type": "string", "pattern": "^[A-Za-z0-9+/]+=*$"}]}
SPEC = {**test_schema.ALL, "Embedding": {**test_schema.ALL["Embedding"], "properties": {
    **test_schema.ALL["Embedding"]["properties"], "embedding": BASE64}}}
for key, schema in test_images.ALL.items():
    if key.startswith("Image"):
        SPEC[key] = schema
# Of /v1/responses, from a file of its own.
RESPONSES = test_responses.ALL


def anthropic_schema(name):
    import anthropic.types
    import pydantic
    return pydantic.TypeAdapter(getattr(anthropic.types, name)).json_schema()


class Published:
    """Validators by name, made once."""

    def __init__(self):
        self.made = {}

    def faults(self, kind, name, v):
        if (kind, name) not in self.made:
            if kind == "anthropic":
                schema = anthropic_schema(name)
            else:
                schema = {"$ref": f"#/components/schemas/{name}",
                          "components": {"schemas": SPEC if kind == "openai" else RESPONSES}}
            self.made[kind, name] = Draft202012Validator(schema)
        return [f"{name}: {'/'.join(map(str, e.absolute_path))}: {e.message[:300]}" for e in self.made[kind, name].iter_errors(v)]


# What a 200 of these is: method, path, schema of an answer, of a streamed frame (None: it follows from the frame's type).
ANSWERS = [
    ("POST", r"/v1/chat/completions", "openai", "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
    ("POST", r"/v1/completions", "openai", "CreateCompletionResponse", "CreateCompletionResponse"),
    ("POST", r"/v1/embeddings", "openai", "CreateEmbeddingResponse", None),
    ("POST", r"/v1/images/(generations|edits)", "openai", "ImagesResponse", None),
    ("GET", r"/v1/models", "openai", "ListModelsResponse", None),
    ("GET", r"/v1/models/[^/]+", "openai", "Model", None),
    ("POST", r"/v1/responses", "responses", "Response", None),
    ("GET", r"/v1/responses/[^/]+", "responses", "Response", None),
    ("GET", r"/v1/responses/[^/]+/input_items", "responses", "ResponseItemList", None),
    ("POST", r"/v1/responses/input_tokens", "responses", "TokenCountsResource", None),
    ("POST", r"/v1/messages", "anthropic", "Message", "RawMessageStreamEvent"),
    ("POST", r"/v1/messages/count_tokens", "anthropic", "MessageTokensCount", None),
]


def by_type(kind, v):
    """The schema of a frame that says what it is."""
    for name, s in (RESPONSES if kind == "responses" else SPEC).items():
        if s.get("properties", {}).get("type", {}).get("enum") == [v.get("type")] and name.endswith("Event"):
            return name
    return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pass_on(self):
        relay = self.server.relay
        n = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(n) if n else None
        c = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=600)
        try:
            head = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
            c.request(self.command, self.path, body, head)
            r = c.getresponse()
            self.send_response(r.status)
            for k, v in r.headers.items():
                if k.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                    self.send_header(k, v)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            got = bytearray()
            while piece := r.read1(65536):
                got += piece
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            relay.check(self.command, self.path, r.status, r.headers.get("Content-Type", ""), bytes(got))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # one of the two has gone
            self.close_connection = True
        finally:
            c.close()

    do_GET = do_POST = do_DELETE = pass_on


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # an SDK that closes is no error
            super().handle_error(request, address)


class Relay:
    def __init__(self, url):
        self.port = int(url.rsplit(":", 1)[1])
        self.bad, self.seen, self.lock, self.published = [], collections.Counter(), threading.Lock(), Published()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.relay = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def one(self, kind, name, v, where):
        with self.lock:
            self.seen[name] += 1
            self.bad += [f"{where}: {e}: {json.dumps(v)[:500]}" for e in self.published.faults(kind, name, v)[:3]]

    def frames(self, kind, name, text, where):
        for frame in text.split("\n\n"):
            data = [line[6:] for line in frame.split("\n") if line.startswith("data: ")]
            if not data or data == ["[DONE]"]:
                continue
            v = json.loads(data[0])
            if kind == "anthropic" and v["type"] == "ping":  # documented, but none of the SDK's types
                self.seen["ping"] += 1
                continue
            schema = name or by_type(kind, v)
            if schema:
                self.one(kind, schema, v, where)
            else:
                self.bad.append(f"{where}: an event of no known type: {data[0][:300]}")

    def check(self, method, target, status, what, body):
        path = target.split("?")[0]
        where = f"{method} {path} {status}"
        try:
            self.check_body(method, path, status, what, body, where)
        except (ValueError, KeyError, TypeError) as e:
            self.bad.append(f"{where}: {e!r}: {body[:300]}")

    def check_body(self, method, path, status, what, body, where):
        if status >= 400:
            v = json.loads(body)
            kind, name, v = ("anthropic", "ErrorResponse", v) if path.startswith("/v1/messages") else ("openai", "Error", v["error"])
            return self.one(kind, name, v, where)
        for m, pattern, kind, whole, frame in ANSWERS:
            if m == method and re.fullmatch(pattern, path):
                if what.startswith("text/event-stream"):
                    return self.frames(kind, frame, body.decode(), where)
                return self.one(kind, whole, json.loads(body), where)
        self.seen[f"{method} {path.rsplit('/', 1)[0]}/*"] += 1
