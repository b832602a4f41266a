#!/usr/bin/env python3
"""The server around image models: a tiny Z-Image beside a tiny text model, queue bounds, clients that leave, metrics,
turns of the two on one device, drain. What the endpoints answer field by field is tested in C (test_images.c)."""
import base64
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SLOW, STEPD, Daemon, tiny_model  # noqa: E402

PICTURES = os.path.join(TOP, "tests/data/image/z-image")
PATH = "/v1/images/generations"


def body(**kw):
    return dict({"model": "art", "prompt": "a red circle", "size": "64x64", "num_inference_steps": 3, "seed": 5}, **kw)


def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n", data[:16]
    return struct.unpack(">II", data[16:24])


class Pictures(unittest.TestCase):
    def daemon(self, *args, text=True):
        d = Daemon("--threads", "2", "--ctx-size", "512", *args, *([f"m={tiny_model()}"] if text else []), f"art={PICTURES}",
                   name="m" if text else "art")
        self.addCleanup(d.__exit__, None)
        return d

    def picture(self, d, **kw):
        s, a = d.post(PATH, body(**kw))
        self.assertEqual(s, 200, a)
        return [base64.b64decode(x["b64_json"]) for x in a["data"]]

    def wait(self, what, timeout=30):
        end = time.monotonic() + timeout * SLOW
        while not what():
            self.assertLess(time.monotonic(), end, "waited too long")
            time.sleep(0.01)

    def later(self, d, out, **kw):
        def go():
            out.append(d.request("POST", PATH, body(**kw), timeout=120))
        t = threading.Thread(target=go)
        t.start()
        self.addCleanup(t.join)
        return t

    def test_pictures(self):
        d = self.daemon()
        one, = self.picture(d)
        self.assertEqual(png_size(one), (64, 64))
        self.assertEqual(self.picture(d), [one])
        both = self.picture(d, n=2)
        self.assertEqual(both[0], one)
        self.assertNotEqual(both[1], one)
        # In company, of other sizes and step numbers: the same bytes.
        out, threads = [], [self.later(d, [], size=s, seed=i, num_inference_steps=6) for i, s in enumerate(("96x64", "128x128", "64x64"))]
        threads.append(self.later(d, out))
        for t in threads:
            t.join()
        self.assertEqual(base64.b64decode(json.loads(out[0][2])["data"][0]["b64_json"]), one)
        m = d.metrics()
        self.assertEqual(d.metric("stepd:image_pictures_total"), 8)
        self.assertEqual(d.metric("stepd:image_steps_total"), 3 * 5 + 6 * 3)
        self.assertEqual(d.metric("stepd:image_pictures_running") + d.metric("stepd:image_pictures_waiting"), 0)
        self.assertGreater(d.metric("stepd:image_picture_seconds"), 0)
        rows = [v for k, v in m.items() if k.startswith("stepd:image_step_rows_sum")]
        self.assertEqual(len(rows), 1, "a row of the image model alone")
        for stage in ("encode", "denoise", "decode"):
            self.assertTrue([v for k, v in m.items() if "image_stage_seconds" in k and stage in k and v > 0], stage)
        self.assertEqual(sum(v for k, v in m.items() if k.startswith("vllm:request_success_total") and 'stop"' in k and "art" in k), 8)
        self.assertIn(f"{d.url}{PATH} -H", d.output())
        self.assertIn(f"{d.url}/v1/chat/completions -H", d.output())

    def test_wrong_kind(self):
        d = self.daemon()
        for path, req in ((PATH, body(model="m")), ("/v1/completions", {"model": "art", "prompt": "Hello"}),
                          ("/v1/chat/completions", {"model": "art", "messages": [{"role": "user", "content": "Hello"}]}),
                          ("/tokenize", {"model": "art", "prompt": "Hello"})):
            s, a = d.post(path, req)
            self.assertIn(s, (400, 404), (path, a))
            self.assertTrue(a["error"]["message"])
        self.picture(d)

    def test_alone(self):
        d = self.daemon(text=False)
        self.assertNotIn("chat/completions", d.output())
        self.picture(d)
        s, a = d.get("/v1/models")
        self.assertEqual([m["id"] for m in a["data"]], ["art"])

    def test_queue(self):
        d = self.daemon("--max-queue-images", "2", "--max-running-images", "1", text=False)
        self.picture(d)  # so that the time of one is known
        out = []
        threads = [self.later(d, out, num_inference_steps=60, size="128x128")]
        self.wait(lambda: d.metric("stepd:image_pictures_running") == 1)
        threads += [self.later(d, out, n=2, num_inference_steps=1) for _ in range(2)]
        self.wait(lambda: d.metric("stepd:image_pictures_waiting") == 4)
        s, h, b = d.request("POST", PATH, body())
        self.assertEqual(s, 429, b)
        e = json.loads(b)["error"]
        self.assertRegex(e["message"], r"^2 image requests are waiting \(about \d+ s\); try again later\.$")
        self.assertEqual(e["code"], "queue_full")
        self.assertGreaterEqual(int(h["Retry-After"]), 1)
        for t in threads:
            t.join()
        self.assertEqual([s for s, h, b in out], [200] * 3)
        self.picture(d)

    def test_client_leaves(self):
        d = self.daemon(text=False)
        for extra in ({}, {"stream": True, "partial_images": 2}):
            data = json.dumps(body(num_inference_steps=100, size="256x256", **extra)).encode()
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                self.wait(lambda: d.metric("stepd:image_pictures_running") == 1)
                before = d.metric("stepd:image_pictures_total")
            self.wait(lambda: d.metric("stepd:image_pictures_running") == 0)
            self.assertEqual(d.metric("stepd:image_pictures_total"), before)
        self.assertEqual(d.metric("stepd:cancelled_total"), 2)
        self.picture(d)

    def test_leaves_while_encoding(self):
        """Pictures are encoded on the pool; whoever has left by then gets nothing, and nothing is lost or used twice."""
        d = self.daemon(text=False)
        data = json.dumps(body(num_inference_steps=1, n=4, size="128x128")).encode()
        for k in range(12):
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                want = d.metric("stepd:image_pictures_total") + 1 + k % 4
                end = time.monotonic() + 5 * SLOW
                while d.metric("stepd:image_pictures_total") < want and time.monotonic() < end:
                    pass
        self.wait(lambda: d.metric("stepd:image_pictures_running") == 0)
        self.picture(d)

    def test_words_beside_pictures(self):
        d = self.daemon()
        out = []
        t = self.later(d, out, num_inference_steps=40, size="128x128")
        self.wait(lambda: d.metric("stepd:image_pictures_running") == 1)
        n = 0
        while t.is_alive() and n < 20:
            s, a = d.post("/v1/completions", {"model": "m", "prompt": "Hello", "max_tokens": 8})
            self.assertEqual(s, 200, a)
            n += 1
        t.join()
        self.assertGreater(n, 1, "words were answered while a picture was at work")
        self.assertEqual(out[0][0], 200)
        for kind in ("text", "images"):
            self.assertTrue([v for k, v in d.metrics().items() if k.startswith("stepd:device_seconds_total") and kind in k and v > 0], kind)

    def test_memory(self):
        """Work memory for two pictures at a time: three take turns, and are what each is alone. For none: an error that says so."""
        d = self.daemon("--image-work-bytes", "900KiB", text=False)
        three = self.picture(d, n=3)
        self.assertGreater(d.metric("stepd:image_device_steps_total"), 3)
        for i, one in enumerate(three):
            self.assertEqual(self.picture(d, seed=5 + i), [one])
        d = self.daemon("--image-work-bytes", "16KiB", text=False)
        s, a = d.post(PATH, body())
        self.assertEqual((s, a["error"]["code"]), (503, "out_of_memory"), a)
        self.assertIn("work memory", a["error"]["message"])

    def test_stream(self):
        d = self.daemon(text=False)
        s, h, b = d.request("POST", PATH, body(partial_images=2, stream=True))
        self.assertEqual(s, 200, b)
        frames = [json.loads(line[6:]) for line in b.decode().splitlines() if line.startswith("data: {")]
        kinds = [f["type"] for f in frames]
        self.assertEqual(kinds.count("image_generation.partial_image"), 2)
        self.assertEqual(kinds[-1], "image_generation.completed")
        self.assertEqual(base64.b64decode(frames[-1]["b64_json"]), self.picture(d)[0])

    def test_drain(self):
        d = self.daemon(text=False)
        out = []
        t = self.later(d, out, num_inference_steps=20)
        self.wait(lambda: d.metric("stepd:image_pictures_running") == 1)
        d.p.send_signal(signal.SIGTERM)
        t.join()
        self.assertEqual(out[0][0], 200)
        self.assertEqual(d.p.wait(60 * SLOW), 0)

    def test_plan(self):
        out = subprocess.run([STEPD, "plan", "--json", PICTURES], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
        p = json.loads(out)[0]
        for k in ("image_size", "image_encode_bytes", "image_denoise_bytes", "image_decode_bytes", "image_decode_tiled_bytes", "weight_bytes"):
            self.assertGreater(p[k], 0, k)
        text = subprocess.run([STEPD, "plan", PICTURES], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
        self.assertTrue(re.search(r"picture +\d+ pixels a side", text), text)
        self.assertNotIn("KV cache", text)

    def test_refiner_unknown(self):
        r = subprocess.run([STEPD, "serve", f"art={PICTURES}", "--port", "0", "--image-refiner", "no-such-model"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(r.returncode, 2)
        self.assertIn("no-such-model", r.stdout)


if __name__ == "__main__":
    unittest.main()
