#!/usr/bin/env python3
"""The image endpoints against the real daemon and a real small model (models/tiny-t2i): the official OpenAI SDK, OpenAI's
published schemas, other servers' field names, odd picture files, addresses, seeds.

The published schemas name the sizes that one hosted model makes; here `size` is any WIDTHxHEIGHT."""
import base64
import glob
import http.client
import io
import json
import os
import re
import socket
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, TOP, Daemon, tiny_model  # noqa: E402

import openai  # noqa: E402
from jsonschema import Draft202012Validator  # noqa: E402
from PIL import Image  # noqa: E402

GEN, EDIT = "/v1/images/generations", "/v1/images/edits"
T2I = os.path.join(TOP, "models", "tiny-t2i")
ODD = os.path.join(TOP, "tests", "data", "image", "odd")
CIRCLE = "a red circle on a white background"
with open(os.path.join(TOP, "tests/data/openai/schemas.json")) as f:
    SPEC = json.load(f)


def widened():
    all_ = json.loads(json.dumps(SPEC["components"]["schemas"]))
    for name, schema in all_.items():
        if name.startswith("Image") and "size" in schema.get("properties", {}):
            schema["properties"]["size"] = {"type": "string", "pattern": "^[0-9]+x[0-9]+$"}
    return all_


ALL = widened()


def faults(name, v):
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": ALL}}
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in Draft202012Validator(schema).iter_errors(v)]


def picture(b64):
    im = Image.open(io.BytesIO(base64.b64decode(b64, validate=True)))
    im.load()
    return im


def pixels(im):
    b = im.tobytes()
    return [b[i:i + 3] for i in range(0, len(b), 3)]


def png(im):
    out = io.BytesIO()
    im.save(out, "PNG")
    return out.getvalue()


def data_url(data, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def form(fields, files=()):
    """multipart/form-data: (body, headers)."""
    b = b""
    for k, v in fields.items():
        b += f'--xyz\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode()
    for k, v in files:
        b += f'--xyz\r\nContent-Disposition: form-data; name="{k}"; filename="a"\r\n\r\n'.encode() + v + b"\r\n"
    return b + b"--xyz--\r\n", {"Content-Type": "multipart/form-data; boundary=xyz"}


def frames(body):
    """(event, data) of each frame."""
    out = []
    for f in body.decode().split("\n\n"):
        if f and not f.startswith(":"):
            m = re.fullmatch(r"(?:event: (\S+)\n)?data: (.*)", f, re.S)
            out.append((m.group(1), json.loads(m.group(2))))
    return out


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--device", "cpu", f"tiny-t2i={T2I}", model=tiny_model())
        cls.c = openai.OpenAI(base_url=cls.d.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.d.__exit__(None, None, None)

    def valid(self, name, v):
        self.assertEqual(faults(name, v), [], json.dumps(v)[:600])

    def make(self, path=GEN, **kw):
        body = {"prompt": CIRCLE, "steps": 2, "seed": 7, **kw}
        s, v = self.d.post(path, {k: x for k, x in body.items() if x is not ...})
        return s, v

    def good(self, path=GEN, **kw):
        s, v = self.make(path, **kw)
        self.assertEqual(s, 200, v)
        self.valid("ImagesResponse", v)
        return v

    def refused(self, param, path=GEN, status=400, **kw):
        s, v = self.make(path, **kw)
        self.assertEqual(s, status, (kw, v))
        self.valid("Error", v["error"])
        self.assertEqual(v["error"]["param"], param, v)
        return v["error"]

    # ---- the SDK ----

    def test_generate(self):
        r = self.c.images.generate(model="tiny-t2i", prompt=CIRCLE, n=2, size="64x64", quality="low",
                                   extra_body={"steps": 12, "guidance_scale": 4, "seed": 7})
        self.assertEqual(len(r.data), 2)
        self.assertEqual((r.size, r.quality, r.output_format, r.background), ("64x64", "low", "png", "opaque"))
        self.assertEqual(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens)
        self.assertEqual(r.usage.input_tokens_details.image_tokens, 0)
        for i, x in enumerate(r.data):
            im = picture(x.b64_json)
            self.assertEqual((im.format, im.size, im.mode), ("PNG", (64, 64), "RGB"))
            self.assertEqual(x.stepd["seed"], 7 + i)
            # What was asked for: white at the border, red in it.
            edge = [im.getpixel((k, j)) for k in range(64) for j in (0, 63)]
            self.assertGreater(sum(min(p) > 200 for p in edge), 100)
            red = sum(p[0] > 150 and p[1] < 110 and p[2] < 110 for p in pixels(im))
            self.assertGreater(red, 250)

    def test_stream(self):
        whole = self.good()
        events = list(self.c.images.generate(prompt=CIRCLE, stream=True, partial_images=2,
                                             extra_body={"steps": 2, "seed": 7, "progress": True}))
        kinds = [e.type.split(".")[1] for e in events]
        self.assertEqual([k for k in kinds if k != "progress"], ["partial_image"] * kinds.count("partial_image") + ["completed"])
        self.assertEqual(kinds.count("progress"), 2)
        self.assertGreaterEqual(kinds.count("partial_image"), 1)
        partial = [e for e in events if e.type.endswith("partial_image")]
        self.assertEqual([e.partial_image_index for e in partial], list(range(len(partial))))
        for e in partial:
            self.assertEqual(picture(e.b64_json).size, (64, 64))
        self.assertEqual(events[-1].b64_json, whole["data"][0]["b64_json"])
        self.assertEqual(events[-1].usage.total_tokens, whole["usage"]["total_tokens"])

    def test_edit(self):
        image = Image.new("RGB", (64, 64), (40, 90, 200))
        mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
        mask.paste((0, 0, 0, 0), (0, 0, 64, 32))
        kw = {"model": "tiny-t2i", "prompt": "a red circle", "image": ("a.png", png(image)), "mask": ("m.png", png(mask))}
        extra = {"steps": 6, "seed": 3, "strength": 1.0}
        r = self.c.images.edit(**kw, n=2, extra_body=extra)
        self.assertEqual(len(r.data), 2)
        self.assertEqual(r.usage.input_tokens_details.image_tokens, r.usage.output_tokens // 2)
        self.assertEqual(r.data[0].stepd["strength"], 1)
        im = picture(r.data[0].b64_json)

        def off(box):
            part = pixels(im.crop(box))
            return sum(abs(a - b) for p in part for a, b in zip(p, (40, 90, 200))) / len(part) / 3
        self.assertLess(off((0, 40, 64, 64)), 20)  # kept
        self.assertGreater(off((0, 0, 64, 28)), 2 * off((0, 40, 64, 64)))  # repainted
        events = list(self.c.images.edit(**kw, stream=True, partial_images=1, extra_body=extra))
        self.assertEqual([e.type for e in events], ["image_edit.partial_image", "image_edit.completed"])
        self.assertEqual(events[-1].b64_json, r.data[0].b64_json)

    def test_errors_of_the_sdk(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.c.images.generate(prompt=CIRCLE, size="65x65")
        self.assertEqual(e.exception.param, "size")
        with self.assertRaises(openai.NotFoundError) as e:
            self.c.chat.completions.create(model="tiny-t2i", messages=[{"role": "user", "content": "hi"}])
        self.assertEqual(e.exception.param, "model")
        with self.assertRaises(openai.BadRequestError) as e:
            self.c.images.generate(model="m", prompt=CIRCLE)
        self.assertEqual(e.exception.param, "model")

    # ---- schemas and fields ----

    def test_streams_are_valid(self):
        image = data_url(png(Image.new("RGB", (64, 64), "green")))
        for path, what, more in ((GEN, "ImageGen", {}), (EDIT, "ImageEdit", {"images": [{"image_url": image}]})):
            s, h, b = self.d.request("POST", path, {"prompt": CIRCLE, "steps": 3, "n": 2, "stream": True, "partial_images": 1,
                                                    "progress": True, "output_format": "webp", **more})
            self.assertEqual((s, h["Content-Type"]), (200, "text/event-stream"), b[:300])
            done, prefix = [], "image_edit." if more else "image_generation."
            for event, v in frames(b):
                self.assertEqual(event, v["type"])
                self.assertTrue(event.startswith(prefix))
                kind = event[len(prefix):]
                if kind == "progress":
                    self.assertEqual(v["total"] >= v["step"] >= 1, True)
                    self.assertGreaterEqual(v["eta_ms"], 0)
                    continue
                self.valid(f"{what}{'PartialImage' if kind == 'partial_image' else 'Completed'}Event", v)
                self.assertEqual(picture(v["b64_json"]).format, "WEBP")
                if kind == "completed":
                    done.append(v["stepd"]["index"])
            self.assertEqual(sorted(done), [0, 1])

    def test_the_schemas_refuse(self):
        v = self.good()
        for change in ({"created": "now"}, {"output_format": "bmp"}, {"usage": {}}, {"data": [{"b64_json": 5}]}, {"size": "big"}):
            self.assertTrue(faults("ImagesResponse", {**v, **change}), change)

    def test_every_request_field_is_known(self):
        image = png(Image.new("RGB", (32, 32), "green"))
        null = {k: None for k in SPEC["request_fields"]["CreateImageRequest"]}
        s, h, b = self.d.request("POST", GEN, {**null, "prompt": "x", "steps": 1})
        self.assertEqual((s, h["x-stepd-warning"]), (200, None), b[:300])
        null = {k: None for k in SPEC["request_fields"]["EditImageBodyJsonParam"]}
        s, h, b = self.d.request("POST", EDIT, {**null, "prompt": "x", "steps": 1, "images": [{"image_url": data_url(image)}]})
        self.assertEqual((s, h["x-stepd-warning"]), (200, None), b[:300])
        values = {"background": "auto", "input_fidelity": "low", "model": "tiny-t2i", "n": "1", "output_compression": "90",
                  "output_format": "jpeg", "partial_images": "0", "prompt": "x", "quality": "low", "response_format": "b64_json",
                  "size": "auto", "stream": "false", "user": "u", "steps": "1"}
        known = set(SPEC["request_fields"]["CreateImageEditRequest"]) - {"image", "mask"}
        self.assertEqual(known - set(values), set())
        body, head = form(values, [("image", image)])
        s, h, b = self.d.request("POST", EDIT, body, head)
        self.assertEqual((s, h["x-stepd-warning"]), (200, None), b[:300])

    def test_sizes(self):
        """LocalAI #2430 and the like: the size is what was asked for, or an error."""
        for size in ((64, 64), (96, 32), (72, 100)):
            v = self.good(size="%dx%d" % size)
            self.assertEqual(picture(v["data"][0]["b64_json"]).size, size)
            self.assertEqual(v["size"], "%dx%d" % size)
        for size in ("big", "0x64", "99999x99999", "63x64", "64", 64):
            self.refused("size", size=size)
        for kw, param in (({"n": 0}, "n"), ({"n": 11}, "n"), ({"response_format": "tiff"}, "response_format"),
                          ({"prompt": ...}, "prompt"), ({"background": "transparent"}, "background"),
                          ({"steps": 3, "num_inference_steps": 4}, "num_inference_steps"), ({"sampler": "heun"}, "sampler")):
            self.refused(param, **({"steps": ...} if "steps" not in kw else {}), **kw)

    def test_samplers(self):
        seen = {}
        for name in ("euler", "Euler a", "DDIM", "DPM++ 2M Karras", "dpm++2m", "LCM"):
            v = self.good(sampler=name, steps=3)
            seen[name] = v["data"][0]["b64_json"]
        self.assertEqual(len(set(seen.values())), 6)
        self.assertEqual(self.good(sampler_name="dpmpp_2m", steps=3)["data"][0]["stepd"]["sampler"], "dpm++2m")

    def test_metadata(self):
        r = self.good(negative_prompt="blue, café", n=1, cfg_scale=3.5, sampler="Euler a", steps=2)
        text = picture(r["data"][0]["b64_json"]).text["parameters"]
        self.assertTrue(text.startswith(CIRCLE + "\nNegative prompt: blue, café\nSteps: 2, Sampler: Euler a, "), text)
        self.assertIn("CFG scale: 3.5, Seed: 7, Size: 64x64, Model: tiny-t2i", text)

    def test_models(self):
        s, v = self.d.get("/v1/models")
        # Served as tiny-t2i, m; listed with text first.
        self.assertEqual([(m["id"], m["kind"]) for m in v["data"]], [("m", "text"), ("tiny-t2i", "image")])
        self.valid("ListModelsResponse", v)
        self.assertEqual(v["data"][1]["meta"]["size_default"], 64)

    # ---- seeds ----

    def test_seeds(self):
        """Picture i of a request is the picture of seed + i; -1 and none are random; the answer says which."""
        three = self.good(n=3, seed=100)
        for i, d in enumerate(three["data"]):
            self.assertEqual(self.good(seed=100 + i)["data"][0]["b64_json"], d["b64_json"])
        a, b = self.good(seed=-1)["data"][0], self.good(seed=...)["data"][0]
        self.assertNotEqual(a["stepd"]["seed"], b["stepd"]["seed"])
        self.assertEqual(self.good(seed=a["stepd"]["seed"])["data"][0]["b64_json"], a["b64_json"])
        self.assertNotEqual(self.good(rng="cuda")["data"][0]["b64_json"], self.good()["data"][0]["b64_json"])

    # ---- the right pictures ----

    def test_as_diffusers(self):
        """The same requests give the pictures that diffusers makes (tests/image/record_api.py). What a mask keeps is the input's
        own pixels here, so an edit with one is compared where it repaints."""
        folder = os.path.join(TOP, "tests", "data", "image", "api")

        def read(name):
            with open(os.path.join(folder, name), "rb") as f:
                return f.read()
        for name, kw in json.loads(read("requests.json")).items():
            box = None
            if name in ("img2img", "inpaint"):
                kw.update(path=EDIT, image=data_url(read("input.png")), sampler="ddim")
            else:
                kw.update(sampler=name, **({"scheduler": "karras"} if name == "dpm++2m" else {}))
            if name == "inpaint":
                kw["mask_image"] = data_url(read("mask.png"))
                box = (0, 0, 32, 32)
            got = picture(self.good(**kw)["data"][0]["b64_json"])
            want = Image.open(io.BytesIO(read(name + ".png")))
            self.assertEqual(got.size, want.size)
            diff = [abs(a - b) for a, b in zip(got.crop(box).tobytes(), want.crop(box).tobytes())]
            self.assertLess(sum(diff) / len(diff), 0.5, name)
            if box:
                kept = Image.open(io.BytesIO(read("input.png")))
                self.assertEqual(got.crop((40, 40, 64, 64)).tobytes(), kept.crop((40, 40, 64, 64)).tobytes())

    # ---- inputs of edits ----

    def edit(self, data, **kw):
        body, head = form({"prompt": "x", "steps": 1, "size": "32x32", **kw}, [("image", data)])
        s, _, b = self.d.request("POST", EDIT, body, head)
        return s, json.loads(b)

    def test_odd_pictures(self):
        n = 0
        for path in sorted(glob.glob(ODD + "/*.*")):
            name = os.path.basename(path)
            if not name.endswith((".png", ".jpg", ".webp", ".gif", ".bmp")):
                continue
            with open(path, "rb") as f:
                s, v = self.edit(f.read())
            n += 1
            with self.subTest(name=name):
                if s != 200:
                    self.assertEqual((s, v["error"]["param"]), (400, "image"), v)
                    self.assertTrue(name.startswith("bad-") or name.endswith((".gif", ".bmp")), v)
                else:
                    self.assertFalse(name.endswith((".gif", ".bmp")))
                    self.assertEqual(picture(v["data"][0]["b64_json"]).size, (32, 32))
        self.assertGreater(n, 40)
        for bad in ("bad-empty.png", "bad-bomb.png", "bad-not-an-image.jpg", "bad-truncated.jpg"):
            with open(os.path.join(ODD, bad), "rb") as f:
                self.assertEqual(self.edit(f.read())[0], 400, bad)

    def test_upright(self):
        """A camera's picture is turned upright before the model sees it: low strength keeps its shape."""
        sizes = set()
        for k in (1, 6):
            with open(os.path.join(ODD, f"rocket-exif{k}.jpg"), "rb") as f:
                s, v = self.edit(f.read(), size="auto", strength="0.1")
            self.assertEqual(s, 200, v)
            sizes.add(v["size"])
        self.assertEqual(len(sizes), 1, sizes)

    def test_json_edits(self):
        image = Image.new("RGBA", (64, 64), (255, 0, 0, 255))
        image.paste((0, 0, 0, 0), (0, 0, 64, 16))
        url = data_url(png(image))
        v = self.good(EDIT, images=[{"image_url": url}])
        self.assertGreater(v["usage"]["input_tokens_details"]["image_tokens"], 0)
        self.good(EDIT, image=url, mask_image=data_url(png(Image.new("L", (64, 64), 255))))
        self.refused("mask.image_url", EDIT, image=url, mask={"image_url": data_url(png(Image.new("L", (64, 64), 255)))})
        self.refused("mask.image_url", EDIT, image=url, mask={"image_url": "data:image/png;base64,AAAA"})
        self.refused("images[0].image_url", EDIT, images=[{"image_url": "http://127.0.0.1:1/x.png"}])
        self.refused("images[0]", EDIT, images=[{"file_id": "file-1"}])
        self.refused("images", EDIT, images=[{"image_url": url}] * 2)
        self.refused("images", EDIT)

    # ---- clients that leave, and the door ----

    def test_client_gone(self):
        """A picture nobody waits for any more is not finished: the next one does not wait for it."""
        body = json.dumps({"prompt": CIRCLE, "steps": 200, "size": "128x128", "stream": True, "progress": True})
        s = socket.create_connection(("127.0.0.1", self.d.port), timeout=60 * SLOW)
        s.sendall(f"POST {GEN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        got = b""
        while b"image_generation.progress" not in got:
            part = s.recv(65536)
            self.assertTrue(part, got)
            got += part
        s.close()
        end = time.monotonic() + 20 * SLOW
        while self.d.metric("vllm:num_requests_running") and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.d.metric("vllm:num_requests_running"), 0)
        self.good()

    def test_head_and_methods(self):
        s, _, b = self.d.request("GET", GEN)
        self.assertEqual(s, 405, b)
        body, head = form({"prompt": "x"})
        s, _, b = self.d.request("POST", GEN, body, head)
        self.assertEqual(s, 415, b)


class Addresses(unittest.TestCase):
    def test_url(self):
        ttl = 4 * SLOW
        with Daemon("--device", "cpu", "--api-key", "sk-x", "--image-url-ttl", str(ttl), model=T2I, name="p") as d:
            key = {"Authorization": "Bearer sk-x"}
            s, _, b = d.request("POST", GEN, {"prompt": CIRCLE, "steps": 1, "response_format": "url", "n": 2}, key)
            self.assertEqual(s, 200, b)
            v = json.loads(b)
            self.assertEqual(faults("ImagesResponse", v), [])
            urls = [x["url"] for x in v["data"]]
            self.assertEqual(len(set(urls)), 2)
            with urllib.request.urlopen(urls[0], timeout=30 * SLOW) as r:  # no key
                self.assertEqual(r.headers["Content-Type"], "image/png")
                self.assertRegex(r.headers["Cache-Control"], r"^private, max-age=\d+, immutable$")
                self.assertEqual(Image.open(io.BytesIO(r.read())).size, (64, 64))
            path = urls[1][len(d.url):]
            c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=30 * SLOW)
            c.request("HEAD", path)
            r = c.getresponse()
            self.assertEqual((r.status, r.read()), (200, b""))
            self.assertGreater(int(r.headers["Content-Length"]), 100)
            c.close()
            self.assertEqual(d.request("GET", "/v1/images/files/" + "0" * 32)[0], 404)
            self.assertEqual(d.request("POST", GEN, {"prompt": "x"})[0], 401)
            time.sleep(ttl + 0.1)
            s, _, b = d.request("GET", path)
            self.assertEqual(s, 404, b)


if __name__ == "__main__":
    unittest.main()
