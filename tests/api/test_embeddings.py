#!/usr/bin/env python3
"""Embeddings, rerank and score of the real daemon. The small model all-minilm-l6-v2 is compared with vectors of
sentence-transformers, through the official SDK; tiny random models stand for the other kinds. Where the small model is not
pulled its tests are skipped and counted."""
import base64
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import threading
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import Daemon, tiny_model  # noqa: E402

DATA = os.path.join(TOP, "tests/data/encode")
MINILM = os.path.join(os.environ.get("STEPD_MODELS", os.path.join(TOP, "models")), "all-minilm-l6-v2")
PATH = "/v1/embeddings"


def with_tokenizer(tmp, name):
    """A tiny model with a WordPiece tokenizer of one word a number: "w7" is one token."""
    path = os.path.join(tmp, name)
    shutil.copytree(os.path.join(DATA, name), path)
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3}
    vocab.update({f"w{i}": i for i in range(4, 512)})
    special = [{"id": i, "content": t, "special": True} for t, i in list(vocab.items())[:4]]
    post = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                               "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": special,
                   "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                  "strip_accents": None, "lowercase": True},
                   "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": post,
                   "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
                   "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                             "max_input_chars_per_word": 100, "vocab": vocab}}, f)
    return path


def words(*ids):
    return " ".join(f"w{i}" for i in ids)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


class Tiny(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        bi, cross = with_tokenizer(cls.tmp.name, "bert"), with_tokenizer(cls.tmp.name, "bert-cross-encoder")
        cls.d = Daemon("--threads", "2", "--ctx-size", "512", f"bi={bi}", f"cross={cross}", f"text={tiny_model()}", name="bi")

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)
        cls.tmp.cleanup()

    def embed(self, text, **kw):
        s, a = self.d.post(PATH, dict({"model": "bi", "input": text}, **kw))
        self.assertEqual(s, 200, a)
        return [x["embedding"] for x in a["data"]], a["usage"]["prompt_tokens"]

    def bad(self, path, body, param, word="", status=400):
        s, a = self.d.post(path, dict({"model": "bi"}, **body))
        self.assertEqual(s, status, a)
        self.assertEqual(a["error"]["param"], param, a)
        self.assertIn(word, a["error"]["message"])

    def test_forms_of_input(self):
        (v,), n = self.embed(words(10, 20))
        self.assertEqual(n, 4)
        self.assertEqual(len(v), 64)
        self.assertAlmostEqual(sum(x * x for x in v), 1, places=5)
        self.assertEqual(self.embed([words(10, 20)])[0], [v])
        self.assertEqual(self.embed([1, 10, 20, 2])[0], [v])
        many, n = self.embed([[1, 10, 20, 2], [1, 30, 2]])
        self.assertEqual(many[0], v)
        self.assertEqual(n, 7)
        bare, n = self.embed(words(10, 20), add_special_tokens=False)
        self.assertEqual(n, 2)
        self.assertEqual(bare, self.embed([10, 20])[0])

    def test_formats(self):
        (v,), _ = self.embed(words(10, 20))
        (b,), _ = self.embed(words(10, 20), encoding_format="base64")
        self.assertEqual(list(struct.unpack("<64f", base64.b64decode(b))), [struct.unpack("f", struct.pack("f", x))[0] for x in v])
        (raw,), _ = self.embed(words(10, 20), normalize=False)
        self.assertNotAlmostEqual(sum(x * x for x in raw), 1, places=3)
        self.assertAlmostEqual(cosine(raw, v), 1, places=5)
        (head,), _ = self.embed(words(10, 20), dimensions=8)
        self.assertEqual(len(head), 8)
        self.assertAlmostEqual(cosine(head, v[:8]), 1, places=5)
        self.assertAlmostEqual(sum(x * x for x in head), 1, places=5)

    def test_truncation(self):
        long = words(*range(10, 110))
        self.bad(PATH, {"input": ["w5", long]}, "input[1]", "102 tokens")
        v, n = self.embed(long, truncate_prompt_tokens=-1)
        self.assertEqual(n, 64)
        self.assertEqual(v, self.embed(words(*range(10, 72)))[0])
        self.assertEqual(self.embed(long, truncate_prompt_tokens=5)[0], self.embed(words(10, 11, 12))[0])
        self.assertEqual(self.embed([7] * 100, truncate_prompt_tokens=3)[1], 3)
        self.bad(PATH, {"input": "w5", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens")
        self.bad(PATH, {"input": "w5", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens")

    def test_bad_input(self):
        for body, param in (({}, "input"), ({"input": None}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"),
                            ({"input": 5}, "input"), ({"input": {"a": 1}}, "input"), ({"input": ["w5", ""]}, "input[1]"),
                            ({"input": ["w5", 5]}, "input[1]"), ({"input": [[]]}, "input[0]"), ({"input": [5, "w5"]}, "input"),
                            ({"input": [512]}, "input"), ({"input": [-1]}, "input"), ({"input": [[1], [1 << 40]]}, "input[1]"),
                            ({"input": "w5", "encoding_format": "hex"}, "encoding_format"),
                            ({"input": "w5", "encoding_format": 1}, "encoding_format"),
                            ({"input": "w5", "dimensions": 0}, "dimensions"), ({"input": "w5", "dimensions": 65}, "dimensions"),
                            ({"input": "w5", "dimensions": "8"}, "dimensions"), ({"input": "w5", "user": 5}, "user"),
                            ({"input": ["w5"] * 2049}, "input")):
            self.bad(PATH, body, param)

    def test_other_models(self):
        self.bad(PATH, {"model": "text", "input": "a"}, "model", "writes text", 404)
        self.bad(PATH, {"model": "cross", "input": "a"}, "model", "classifier", 404)
        self.bad(PATH, {"model": "none", "input": "a"}, "model", "does not exist", 404)
        self.bad("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "model", "/v1/embeddings", 404)
        self.bad("/v1/completions", {"prompt": "a"}, "model", "/v1/embeddings", 404)
        s, a = self.d.get("/v1/models")
        self.assertEqual([(m["id"], m["kind"]) for m in a["data"]],
                         [("text", "text"), ("bi", "embedding"), ("cross", "classifier")])
        self.assertEqual(a["data"][1]["meta"]["dimensions"], 64)
        s, a = self.d.post("/tokenize", {"model": "bi", "prompt": "w5 w6"})
        self.assertEqual(a["tokens"], [1, 5, 6, 2])

    def test_company(self):
        """The same bytes whoever else is served; large answers are written elsewhere, in the same way."""
        texts = [words(*range(5 + i % 40, 6 + i % 40 + i % 17)) for i in range(600)]
        alone = [self.embed(t)[0][0] for t in texts[:20]]
        out = {}
        ts = [threading.Thread(target=lambda k=k: out.update({k: self.embed(texts)[0]})) for k in range(3)]
        for t in ts:
            t.start()
        for t in ts:
            t.join()
        for k in range(3):
            self.assertEqual(len(out[k]), 600)
            self.assertEqual(out[k][:20], alone)
            self.assertEqual(out[k], out[0])

    def test_rerank(self):
        docs = [words(30, 31), words(10, 20), {"text": words(10, 40)}]
        (q, *v), _ = self.embed([words(10, 20)] + [d if isinstance(d, str) else d["text"] for d in docs])
        want = sorted(range(3), key=lambda i: -cosine(q, v[i]))
        for path in ("/v1/rerank", "/rerank"):
            s, a = self.d.post(path, {"model": "bi", "query": words(10, 20), "documents": docs})
            self.assertEqual(s, 200, a)
            self.assertEqual([r["index"] for r in a["results"]], want)
            self.assertEqual(a["results"][0]["index"], 1)
            self.assertEqual(a["results"][0]["document"]["text"], words(10, 20))
            for r in a["results"]:
                self.assertAlmostEqual(r["relevance_score"], cosine(q, v[r["index"]]), places=5)
        s, a = self.d.post("/v1/rerank", {"model": "bi", "query": "w10", "documents": docs, "top_n": 1, "return_documents": False})
        self.assertEqual(len(a["results"]), 1)
        self.assertNotIn("document", a["results"][0])

    def test_cross_encoder(self):
        pairs = [(words(10, 20), words(30)), (words(10, 20), words(10, 20))]
        s, a = self.d.post("/v1/rerank", {"model": "cross", "query": words(10, 20), "documents": [p[1] for p in pairs]})
        self.assertEqual(s, 200, a)
        self.assertEqual(a["usage"]["total_tokens"], 6 + 7)
        by = {r["index"]: r["relevance_score"] for r in a["results"]}
        self.assertGreaterEqual(a["results"][0]["relevance_score"], a["results"][1]["relevance_score"])
        for path in ("/v1/score", "/score"):
            s, b = self.d.post(path, {"model": "cross", "text_1": words(10, 20), "text_2": [p[1] for p in pairs]})
            self.assertEqual([x["score"] for x in b["data"]], [by[0], by[1]])
        s, raw = self.d.post("/score", {"model": "cross", "text_1": [p[0] for p in pairs], "text_2": [p[1] for p in pairs],
                                        "use_activation": False})
        for x, y in zip(raw["data"], b["data"]):
            self.assertAlmostEqual(1 / (1 + math.exp(-x["score"])), y["score"], places=5)

    def test_score_of_vectors(self):
        (a, b), _ = self.embed([words(10), words(20, 21)])
        s, r = self.d.post("/v1/score", {"model": "bi", "text_1": [words(10), words(10)], "text_2": [words(20, 21), words(10)]})
        self.assertEqual(s, 200, r)
        self.assertAlmostEqual(r["data"][0]["score"], cosine(a, b), places=5)
        self.assertAlmostEqual(r["data"][1]["score"], 1, places=5)

    def test_bad_pairs(self):
        for path, body, param in (("/rerank", {"documents": ["a"]}, "query"), ("/rerank", {"query": "a"}, "documents"),
                                  ("/rerank", {"query": "a", "documents": []}, "documents"),
                                  ("/rerank", {"query": ["a"], "documents": ["a"]}, "query"),
                                  ("/rerank", {"query": "a", "documents": ["a", 5]}, "documents[1]"),
                                  ("/rerank", {"query": "a", "documents": ["a", ""]}, "documents[1]"),
                                  ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
                                  ("/score", {"text_1": "a"}, "text_2"), ("/score", {"text_2": "a"}, "text_1"),
                                  ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1")):
            self.bad(path, body, param)
        self.bad("/rerank", {"model": "cross", "query": words(*range(10, 100)), "documents": ["w5"]}, "documents[0]", "tokens")
        self.bad("/rerank", {"model": "text", "query": "a", "documents": ["a"]}, "model", status=404)
        s, a = self.d.post("/rerank", {"model": "cross", "query": words(10, 11), "documents": [words(*range(10, 100))],
                                       "truncate_prompt_tokens": -1})
        self.assertEqual(a["usage"]["total_tokens"], 64)

    def test_metrics(self):
        before = self.d.metrics()
        self.embed(["w5", "w6 w7"])
        after = self.d.metrics()
        for name, n in (("vllm:prompt_tokens_total", 7), ("vllm:request_prompt_tokens_sum", 7), ("vllm:e2e_request_latency_seconds_count", 1)):
            key, = (k for k in after if k.startswith(name + "{") and 'model_name="bi"' in k)
            self.assertEqual(after[key] - before.get(key, 0), n, key)


@unittest.skipUnless(os.path.isdir(MINILM), "the model all-minilm-l6-v2 is not pulled")
class MiniLM(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import openai
        cls.d = Daemon(model=MINILM, name="minilm")
        cls.c = openai.OpenAI(base_url=cls.d.url + "/v1", api_key="none", max_retries=0)
        with open(os.path.join(DATA, "all-minilm-l6-v2.json")) as f:
            cls.rows = [r for r in json.load(f)["rows"] if r["text"]]

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.d.__exit__(None, None, None)

    def test_vectors(self):
        """The SDK asks for base64 by itself; with float it gets numbers."""
        texts = [r["text"] for r in self.rows]
        for kw in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            r = self.c.embeddings.create(model="minilm", input=texts, extra_body={"truncate_prompt_tokens": -1}, **kw)
            self.assertEqual(r.usage.prompt_tokens, sum(len(x["ids"]) for x in self.rows))
            self.assertEqual([d.index for d in r.data], list(range(len(texts))))
            for d, want in zip(r.data, self.rows):
                v = d.embedding
                if isinstance(v, str):
                    v = struct.unpack(f"<{len(v) * 3 // 16}f", base64.b64decode(v))
                self.assertEqual(len(v), 384)
                self.assertLess(max(abs(x - y) for x, y in zip(v, want["embedding"])), 1e-4)

    def test_ids(self):
        for want in self.rows:
            r = self.c.embeddings.create(model="minilm", input=want["ids"], encoding_format="float")
            self.assertLess(max(abs(x - y) for x, y in zip(r.data[0].embedding, want["embedding"])), 1e-4)

    def test_meaning(self):
        s, a = self.d.post("/v1/rerank", {"model": "minilm", "query": "How do I bake bread?",
                                          "documents": ["The stock market fell.", "Knead the dough and put it in the oven.", "Cats sleep."]})
        self.assertEqual(a["results"][0]["index"], 1)

    def test_errors(self):
        import openai
        with self.assertRaises(openai.BadRequestError) as e:
            self.c.embeddings.create(model="minilm", input="word " * 300)
        self.assertEqual(e.exception.param, "input")
        self.assertEqual(e.exception.code, "context_length_exceeded")


if __name__ == "__main__":
    unittest.main()
