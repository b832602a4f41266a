#!/usr/bin/env python3
"""Transcriptions and translations of the real daemon: a tiny Whisper of random weights says nonsense, but the same each time, in
every format, alone and in company, over HTTP and through the official SDK; whisper-tiny.en, where it is pulled, says what was
spoken, in every kind of sound file."""
import glob
import http.client
import io
import json
import lzma
import math
import os
import re
import shutil
import struct
import sys
import tempfile
import threading
import time
import unittest
import wave

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SLOW, Daemon, tiny_model  # noqa: E402

import openai  # noqa: E402

DATA = os.path.join(TOP, "tests/data/audio")
SOUND = os.path.join(DATA, "sound")
REAL = os.path.join(os.environ.get("STEPD_MODELS", os.path.join(TOP, "models")), "whisper-tiny.en")
PATH, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


def tiny_whisper(folder):
    path = os.path.join(folder, "whisper")
    shutil.copytree(os.path.join(DATA, "tiny"), path)
    with lzma.open(os.path.join(path, "model.safetensors.xz")) as f, open(os.path.join(path, "model.safetensors"), "wb") as out:
        shutil.copyfileobj(f, out)
    return path


def read(name):
    with open(os.path.join(SOUND, name), "rb") as f:
        return f.read()


def tone(seconds, hz=300, rate=16000, channels=1):
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(channels)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(hz * (1 + i / rate / 9) * i / rate))) * channels
                               for i in range(int(seconds * rate))))
    return out.getvalue()


def form(fields, file=None, name="a.wav", boundary="xyzzy"):
    parts = [(k, v) for k, vs in fields.items() for v in (vs if isinstance(vs, list) else [vs])]
    body = b"".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in parts)
    if file is not None:
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + file + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def send(d, file, path=PATH, **fields):
    """(status, headers, body)"""
    body, head = form(fields, file)
    return d.request("POST", path, body, headers=head, timeout=120)


def plain(text):
    return re.sub(r"[^a-z ]", "", text.lower()).split()


class Case(unittest.TestCase):
    def ask(self, file, path=PATH, **fields):
        s, _, b = send(self.d, file, path, **{"model": "w", **fields})
        self.assertEqual(s, 200, b)
        return b.decode() if fields.get("response_format") in ("text", "srt", "vtt") or fields.get("stream") else json.loads(b)

    def bad(self, file, param, word="", status=400, path=PATH, **fields):
        s, _, b = send(self.d, file, path, **{"model": "w", **fields})
        self.assertEqual(s, status, b)
        e = json.loads(b)["error"]
        self.assertEqual(e["param"], param, e)
        self.assertIn(word, e["message"])
        return e


class Tiny(Case):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.d = Daemon("--threads", "2", "--ctx-size", "512", "--audio-seconds-max", "60", f"w={tiny_whisper(cls.tmp.name)}",
                       f"text={tiny_model()}", name="w")

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)
        cls.tmp.cleanup()

    def test_formats_agree(self):
        sound = tone(5.3)
        a = {f: self.ask(sound, response_format=f) for f in FORMATS}
        v = a["verbose_json"]
        self.assertEqual(v["task"], "transcribe")
        self.assertIn(v["language"], ("english", "german", "chinese"))
        self.assertAlmostEqual(v["duration"], 5.3, places=2)
        self.assertEqual(v["text"], a["json"]["text"])
        self.assertEqual(v["usage"], {"type": "duration", "seconds": 6})
        self.assertEqual(a["json"]["usage"], v["usage"])
        self.assertEqual(a["text"], v["text"] + "\n")
        self.assertNotIn("words", v)
        self.assertTrue(v["segments"])
        self.assertEqual("".join(s["text"] for s in v["segments"]).strip(), v["text"])
        for i, s in enumerate(v["segments"]):
            self.assertEqual(s["id"], i)
            self.assertLessEqual(s["start"], s["end"])
            self.assertEqual(set(s), {"id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob",
                                      "compression_ratio", "no_speech_prob"})
        self.assertTrue(a["vtt"].startswith("WEBVTT\n\n00:00:0"))
        cue = r"(?:\d+\n)?\d\d:\d\d:\d\d[.,]\d{3} --> \d\d:\d\d:\d\d[.,]\d{3}\n[^\n]*\n"
        for f in ("srt", "vtt"):
            self.assertEqual(len(re.findall(cue, a[f])), len(v["segments"]), a[f])
        self.assertTrue(a["srt"].startswith("1\n00:00:0"))

    def test_content_types(self):
        for f, kind in (("json", "application/json"), ("text", "text/plain; charset=utf-8"), ("srt", "text/plain; charset=utf-8"),
                        ("vtt", "text/vtt; charset=utf-8")):
            s, h, b = send(self.d, tone(1), model="w", response_format=f)
            self.assertEqual((s, h["Content-Type"]), (200, kind))

    def test_stream_equals_whole(self):
        sound = tone(7)
        whole = self.ask(sound)["text"]
        for fmt in ("json", "text"):
            out = self.ask(sound, stream="true", response_format=fmt)
            frames = [json.loads(f.split("data: ", 1)[1]) for f in out.split("\n\n") if f]
            self.assertEqual([f["type"] for f in frames[:-1]], ["transcript.text.delta"] * (len(frames) - 1))
            self.assertGreater(len(frames), 3)
            self.assertEqual(frames[-1]["type"], "transcript.text.done")
            self.assertEqual(frames[-1]["text"], whole)
            self.assertEqual("".join(f["delta"] for f in frames[:-1]).rstrip(), whole)
            u = frames[-1]["usage"]
            self.assertEqual(u["input_token_details"]["audio_tokens"], 350)
            self.assertEqual(u["total_tokens"], u["input_tokens"] + u["output_tokens"])

    def test_words(self):
        v = self.ask(tone(3), response_format="verbose_json", **{"timestamp_granularities[]": ["word", "segment"]})
        self.assertTrue(v["words"] and v["segments"])
        self.assertEqual(v["text"], self.ask(tone(3))["text"])
        for a, b in zip(v["words"], v["words"][1:]):
            self.assertLessEqual(a["start"], a["end"])
            self.assertLessEqual(a["start"], b["start"])
        self.assertEqual("".join("".join(w["word"].split()) for w in v["words"]), "".join(v["text"].split()))
        v = self.ask(tone(3), response_format="verbose_json", **{"timestamp_granularities[]": "word"})
        self.assertNotIn("segments", v)

    def test_same_in_company(self):
        jobs = [(tone(1 + 0.7 * i, 200 + 40 * i), {"response_format": "verbose_json", "temperature": 0.7 if i % 3 == 1 else 0, "seed": i})
                for i in range(9)]
        alone = [self.ask(f, **kw) for f, kw in jobs]
        got = [None] * len(jobs)

        def run(i):
            got[i] = self.ask(jobs[i][0], **jobs[i][1])
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, alone)

    def test_parameters_matter(self):
        sound = tone(2.5, 500)
        base = self.ask(sound, response_format="verbose_json", language="en")
        self.assertEqual(base, self.ask(sound, response_format="verbose_json", language="English"))
        self.assertEqual(base["language"], "english")
        for kw in ({"language": "de"}, {"prompt": "Names: Ana, Bo."}, {"temperature": 0.9}):
            self.assertNotEqual(base["segments"], self.ask(sound, response_format="verbose_json", **{"language": "en", **kw})["segments"], kw)
        hot = {"temperature": 1, "language": "en"}
        self.assertEqual(self.ask(sound, seed=4, **hot), self.ask(sound, seed=4, **hot))
        self.assertNotEqual(self.ask(sound, seed=4, **hot), self.ask(sound, seed=5, **hot))
        english = self.ask(sound, path=TRANSLATE, response_format="verbose_json", language="en")
        self.assertEqual(english["task"], "translate")
        self.assertNotEqual(english["segments"], base["segments"])

    def test_every_kind_of_file(self):
        for path in sorted(glob.glob(os.path.join(SOUND, "*.*"))):
            name = os.path.basename(path)
            if name.startswith(("bad-", "LICENSE")):
                continue
            v = self.ask(read(name), response_format="verbose_json", language="en")
            want = 2 if "silence" in name else 3 if "3s" in name or "streamed" in name else 11
            self.assertAlmostEqual(v["duration"], want, delta=0.06, msg=name)

    def test_rates_and_channels(self):
        for rate, channels in ((8000, 2), (11025, 1), (22050, 6), (96000, 1), (16000, 64), (3000, 1)):
            v = self.ask(tone(1, rate=rate, channels=channels), response_format="verbose_json", language="en")
            self.assertAlmostEqual(v["duration"], 1, places=2)
        self.bad(tone(1, channels=65), "file", "65 channels")

    def test_bad_files(self):
        for name, word in (("bad-empty.wav", "empty"), ("bad-header-only.wav", "no sound file")):
            self.assertEqual(self.bad(read(name), "file", word)["code"], "invalid_audio")
        s, _, b = send(self.d, read("bad-truncated.wav"), model="w")
        self.assertIn(s, (200, 400), b)
        self.bad(b"\x89PNG\r\n\x1a\n" + bytes(3000), "file", "no sound file")
        self.bad(b"fLaC" + bytes(100), "file")
        self.bad(b"ID3" + bytes(1000), "file")
        self.bad(tone(0.05), "file", "0.05 s")
        self.assertEqual(self.bad(tone(61, rate=8000), "file", "longer than 60 s")["code"], "audio_too_long")
        for cut in (30, 60, 200, 5000):
            for name in ("jfk.flac", "jfk.ogg", "jfk.opus", "jfk.mp3"):
                s, _, b = send(self.d, read(name)[:cut], model="w", language="en")
                self.assertIn(s, (200, 400), (name, cut, b))

    def test_claims_are_no_memory(self):
        """A second of sound that claims 2^31 samples takes the memory of a second."""
        sound = bytearray(tone(1))
        sound[40:44] = struct.pack("<I", 0xFFFFFFF0)
        sound[4:8] = struct.pack("<I", 0xFFFFFFFF)
        self.ask(tone(1), language="en")
        before = self.d.metric("process_resident_memory_bytes")
        for _ in range(5):
            self.assertAlmostEqual(self.ask(bytes(sound), response_format="verbose_json", language="en")["duration"], 1, places=2)
        self.assertLess(self.d.metric("process_resident_memory_bytes") - before, 64 << 20)

    def test_bad_parameters(self):
        sound = tone(1)
        for fields, param in (({"response_format": "xml"}, "response_format"), ({"language": "xx"}, "language"),
                              ({"language": "fr"}, "language"), ({"temperature": "warm"}, "temperature"), ({"temperature": 1.5}, "temperature"),
                              ({"stream": "perhaps"}, "stream"), ({"stream": "true", "response_format": "srt"}, "stream"),
                              ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
                              ({"timestamp_granularities[]": "page", "response_format": "verbose_json"}, "timestamp_granularities"),
                              ({"include[]": "logprobs"}, "include"), ({"chunking_strategy": "server_vad"}, "chunking_strategy"),
                              ({"known_speaker_names[]": "Ana"}, "known_speaker_names"), ({"seed": "x"}, "seed"),
                              ({"model": ["w", "w"]}, "model"), ({"prompt": "x" * 70000}, "prompt")):
            self.bad(sound, param, **fields)
        self.bad(None, "file", "Missing")
        body, head = form({"model": "w"})
        s, _, b = self.d.request("POST", PATH, {"model": "w"})
        self.assertEqual((s, json.loads(b)["error"]["code"]), (400, "invalid_content_type"))
        s, _, b = self.d.request("POST", PATH, body[:-20], headers=head)
        self.assertEqual((s, json.loads(b)["error"]["code"]), (400, "invalid_multipart"))
        s, h, _ = send(self.d, sound, model="w", colour="red", language="en")
        self.assertEqual((s, h["X-Stepd-Warning"]), (200, "ignored unknown fields: colour"))

    def test_other_models(self):
        self.bad(tone(1), "model", "does not transcribe", model="text")
        self.bad(tone(1), "model", "does not exist", 404, model="none")
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}), ("/v1/completions", {"prompt": "a"})):
            s, a = self.d.post(path, {"model": "w", **body})
            self.assertEqual((s, a["error"]["param"]), (404, "model"))
            self.assertIn("/v1/audio/transcriptions", a["error"]["message"])
        s, a = self.d.get("/v1/models")
        self.assertEqual([(m["id"], m["kind"]) for m in a["data"]], [("text", "text"), ("w", "transcription")])
        s, _, b = send(self.d, tone(1), language="en")  # without a model: the first that transcribes
        self.assertEqual(s, 200, b)

    def test_chat_goes_on(self):
        done = threading.Event()

        def listen():
            self.ask(tone(55, rate=8000), language="en")
            done.set()
        t = threading.Thread(target=listen)
        t.start()
        n = 0
        while not done.is_set() or not n:
            s, a = self.d.post("/v1/completions", {"model": "text", "prompt": "a", "max_tokens": 4})
            self.assertEqual(s, 200, a)
            n += 1
        t.join()

    def test_metrics(self):
        def values():
            return {k: self.d.metric("stepd:audio_" + k) for k in ("recordings_total", "seconds_total", "windows_total", "decode_steps_total")}
        before = values()
        self.ask(tone(3), language="en")
        after = values()
        self.assertEqual(after["recordings_total"] - before["recordings_total"], 1)
        self.assertAlmostEqual(after["seconds_total"] - before["seconds_total"], 3, places=1)
        self.assertGreaterEqual(after["windows_total"] - before["windows_total"], 1)
        self.assertGreater(after["decode_steps_total"], before["decode_steps_total"])
        self.assertGreater(self.d.metric("stepd:audio_pace"), 0)

    def test_client_leaves(self):
        before = self.d.metric("stepd:cancelled_total")
        body, head = form({"model": "w", "temperature": 1}, tone(59, rate=8000))
        for _ in range(3):
            c = http.client.HTTPConnection("127.0.0.1", self.d.port, timeout=60)
            c.request("POST", PATH, body, head)
            end = time.monotonic() + 20 * SLOW
            while self.d.metric("stepd:audio_recordings_running") < 1 and time.monotonic() < end:
                time.sleep(0.005)
            c.close()
            while self.d.metric("stepd:audio_recordings_running") and time.monotonic() < end:
                time.sleep(0.01)
            self.assertEqual(self.d.metric("stepd:audio_recordings_running"), 0)
        self.assertGreater(self.d.metric("stepd:cancelled_total"), before)


class Limits(Case):
    def test_queue(self):
        with tempfile.TemporaryDirectory() as tmp:
            with Daemon("--threads", "1", "--max-running-audio", "1", "--max-queue-audio", "1", "--max-audio-bytes", "4MiB", "--max-body-bytes",
                        "256KiB", "--audio-memory", "3MiB", f"w={tiny_whisper(tmp)}", name="w") as self.d:
                self.ask(tone(9), language="en")  # larger than max-body-bytes
                s, _, b = send(self.d, bytes(5 << 20), model="w")
                self.assertEqual(s, 413, b)
                self.assertIn("max-audio-bytes", json.loads(b)["error"]["message"])
                e = self.bad(tone(110, rate=8000), None, status=429)  # 4 MB of frames
                self.assertEqual(e["code"], "queue_full")
                got, sound = [], tone(28)
                lock = threading.Lock()

                def run():
                    r = send(self.d, sound, model="w", temperature=1)
                    with lock:
                        got.append((r[0], r[1]["Retry-After"]))
                threads = [threading.Thread(target=run) for _ in range(16)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                self.assertEqual({s for s, _ in got}, {200, 429})
                self.assertTrue(all(retry for s, retry in got if s == 429))


class Sdk(Case):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.d = Daemon("--threads", "2", "--strict-fields", "yes", f"w={tiny_whisper(cls.tmp.name)}", name="w")
        cls.c = openai.OpenAI(base_url=cls.d.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.d.__exit__(None, None, None)
        cls.tmp.cleanup()

    def make(self, what="transcriptions", **kw):
        return getattr(self.c.audio, what).create(model="w", file=("a.wav", tone(4)), **kw)

    def test_formats(self):
        for what, kw in (("transcriptions", {"language": "de", "prompt": "x"}), ("translations", {"prompt": "x"})):
            text = self.make(what, **kw).text
            self.assertTrue(text)
            self.assertEqual(self.make(what, response_format="json", **kw).text, text)
            self.assertEqual(self.make(what, response_format="text", **kw).strip(), text)
            v = self.make(what, response_format="verbose_json", **kw)
            self.assertEqual(v.text, text)
            self.assertAlmostEqual(float(v.duration), 4)
            self.assertTrue(v.segments and v.segments[0].tokens)
            self.assertIn("-->", self.make(what, response_format="srt", **kw))
            self.assertIn("WEBVTT", self.make(what, response_format="vtt", **kw))

    def test_words(self):
        v = self.make(response_format="verbose_json", timestamp_granularities=["word", "segment"], temperature=0)
        self.assertTrue(v.words and v.segments)
        self.assertLessEqual(v.words[0].start, v.words[-1].end)

    def test_stream(self):
        text = self.make().text
        kinds, got = [], ""
        for event in self.make(stream=True):
            kinds.append(event.type)
            got += event.delta if event.type == "transcript.text.delta" else ""
        self.assertEqual(event.text, text)
        self.assertEqual(got.rstrip(), text)
        self.assertEqual(kinds[-1], "transcript.text.done")
        self.assertGreater(event.usage.output_tokens, 0)

    def test_error(self):
        with self.assertRaises(openai.BadRequestError) as r:
            self.c.audio.transcriptions.create(model="w", file=("a.wav", b"RIFF"))
        self.assertEqual(r.exception.param, "file")


@unittest.skipUnless(os.path.isdir(REAL), "skipped: whisper-tiny.en is not here (stepd pull whisper-tiny.en)")
class Real(Case):
    TEXT = "And so, my fellow Americans, ask not what your country can do for you, ask what you can do for your country."

    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--threads", "2", f"w={REAL}", name="w")

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def test_every_form(self):
        for kind in ("wav", "flac", "mp3", "ogg", "opus"):
            self.assertEqual(plain(self.ask(read("jfk." + kind))["text"]), plain(self.TEXT), kind)

    def test_words(self):
        v = self.ask(read("jfk.wav"), response_format="verbose_json", **{"timestamp_granularities[]": "word"})
        self.assertEqual([plain(w["word"])[0] for w in v["words"]], plain(self.TEXT))
        at = {plain(w["word"])[0]: w["start"] for w in v["words"]}
        for word, second in (("fellow", 1.4), ("americans", 1.8), ("country", 9.9)):
            self.assertAlmostEqual(at[word], second, delta=0.4)

    def test_english_only(self):
        self.bad(read("jfk.wav"), "model", "English only", path=TRANSLATE)
        self.bad(read("jfk.wav"), "language", "does not know", language="de")

    def test_prompt(self):
        v = self.ask(read("jfk.wav"), prompt="A speech by J.F.K.")
        self.assertEqual(plain(v["text"]), plain(self.TEXT))

    def test_cache_in_eight_bits(self):
        """Keys and values of text and sound as --kv-dtype keeps them: the same transcript, and the same words at much the same times."""
        fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
        base, wide = self.ask(read("jfk.wav"), **fields), self.d
        for kind in ("int8", "fp8"):
            with Daemon("--threads", "2", "--kv-dtype", kind, f"w={REAL}", name="w") as self.d:
                v = self.ask(read("jfk.wav"), **fields)
            self.d = wide
            self.assertEqual(v["text"], base["text"], kind)
            self.assertEqual([w["word"] for w in v["words"]], [w["word"] for w in base["words"]], kind)
            for a, b in zip(v["words"], base["words"]):
                self.assertAlmostEqual(a["start"], b["start"], delta=0.1, msg=kind)
            p, q = v["segments"][0]["avg_logprob"], base["segments"][0]["avg_logprob"]
            self.assertNotEqual(p, q, kind)
            self.assertAlmostEqual(p, q, delta=0.05, msg=kind)


if __name__ == "__main__":
    unittest.main()
