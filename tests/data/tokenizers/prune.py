#!/usr/bin/env python3
"""Make this folder's files from the full ones: prune.py SRC DST

SRC holds ggml-vocab/, hf/, mistral/, clip/, goldens/, texts.json. Small vocabularies are copied. The
large ones lose every entry (and merge) whose text occurs in none of the test texts: such an entry can
take no part in encoding them, so the expected ids stay as they are. Ids are kept; a lost entry is an
empty text. Standard library only."""
import base64, gzip, json, lzma, os, shutil, struct, sys, unicodedata

SRC, DST = sys.argv[1], sys.argv[2]
FULL = {"nomic-bert-moe", "bert-bge", "llama-spm", "phi-3", "gpt-2", "deepseek-coder"}
FMT = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def letters():
    keep = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    m = {chr(b): b for b in keep}
    m.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in keep)})
    return m


LETTER = letters()
texts = list(json.load(open(f"{SRC}/texts.json")))
for f in os.listdir(f"{SRC}/ggml-vocab"):
    if f.endswith(".inp"):
        raw = open(f"{SRC}/ggml-vocab/{f}", encoding="utf8", newline="").read()
        texts += raw.split("\n__ggml_vocab_test__\n")
hay = set()
for t in set(texts):
    for form in (None, "NFC", "NFD", "NFKC", "NFKD"):
        u = unicodedata.normalize(form, t) if form else t
        for v in (u, u.lower()):
            hay |= {" " + v, " " + " ".join(v.split()) + " "}
hay = b"\0\0".join(h.encode() for h in sorted(hay))


def text_of(s, byte_level):
    if byte_level:
        if all(c in LETTER for c in s):
            return bytes(LETTER[c] for c in s)
        return s.encode()
    return s.replace("\u2581", " ").encode()


def wanted(s, byte_level=True):
    b = text_of(s, byte_level)
    return len(b) <= 1 or b in hay


def pack(path, data):
    with lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as f:
        f.write(data)


class Gguf:
    def __init__(self, b):
        self.b, self.o = b, 8
        self.nt, self.nk = struct.unpack_from("<QQ", b, 8)
        self.o = 24
        self.kv = [self.pair() for _ in range(self.nk)]

    def num(self, f):
        v = struct.unpack_from("<" + f, self.b, self.o)
        self.o += struct.calcsize("<" + f)
        return v if len(v) > 1 else v[0]

    def string(self):
        n = self.num("Q")
        self.o += n
        return self.b[self.o - n:self.o]

    def value(self, t):
        if t == 8:
            return self.string()
        if t == 9:
            e, n = self.num("IQ")
            if e == 8:
                return [e, [self.string() for _ in range(n)]]
            self.o += n * struct.calcsize(FMT[e])
            return [e, list(struct.unpack_from(f"<{n}{FMT[e]}", self.b, self.o - n * struct.calcsize(FMT[e])))]
        return self.num(FMT[t])

    def pair(self):
        k = self.string()
        t = self.num("I")
        return [k, t, self.value(t)]

    def dump(self):
        out = [self.b[:8], struct.pack("<QQ", self.nt, self.nk)]
        s = lambda x: out.append(struct.pack("<Q", len(x)) + x)
        for k, t, v in self.kv:
            s(k)
            out.append(struct.pack("<I", t))
            if t == 8:
                s(v)
            elif t == 9:
                out.append(struct.pack("<IQ", v[0], len(v[1])))
                if v[0] == 8:
                    for x in v[1]:
                        s(x)
                else:
                    out.append(struct.pack(f"<{len(v[1])}{FMT[v[0]]}", *v[1]))
            else:
                out.append(struct.pack("<" + FMT[t], v))
        return b"".join(out)


def prune_gguf(data):
    g = Gguf(data)
    kv = {k.decode(): v for k, _, v in g.kv}
    tok = kv["tokenizer.ggml.tokens"][1]
    typ = kv["tokenizer.ggml.token_type"][1]
    bl = kv["tokenizer.ggml.model"] == b"gpt2"
    score = kv.get("tokenizer.ggml.scores", [0, []])[1]
    low = min((s, i) for i, s in enumerate(score) if typ[i] == 1)[1] if score else -1
    for i, t in enumerate(tok):
        if typ[i] in (1, 5) and i != low and not wanted(t.decode("utf8", "replace"), bl):
            tok[i] = b""
            if score:
                score[i] = 0.0
    have = set(tok)
    if "tokenizer.ggml.merges" in kv:
        m = kv["tokenizer.ggml.merges"]
        part = lambda x: (x[:x.index(b" ", 1)], x[x.index(b" ", 1) + 1:])
        m[1] = [x for x in m[1] if {part(x)[0], part(x)[1], b"".join(part(x))} <= have]
    return g.dump()


def prune_json(data):
    d = json.loads(data)
    m = d["model"]
    m["vocab"] = {k: v for k, v in m["vocab"].items() if wanted(k)}
    have = set(m["vocab"])
    split = lambda x: x.split(" ") if isinstance(x, str) else x
    m["merges"] = [x for x in m["merges"] if {split(x)[0], split(x)[1], "".join(split(x))} <= have]
    return json.dumps(d, ensure_ascii=False, separators=(",", ":")).encode()


def prune_tekken(data):
    d = json.loads(data)
    c = d["config"]
    d["vocab"] = d["vocab"][:c["default_vocab_size"] - c["default_num_special_tokens"]]
    for v in d["vocab"]:
        v.pop("token_str", None)
        b = base64.b64decode(v["token_bytes"])
        if len(b) > 1 and b not in hay:
            v["token_bytes"] = ""
    return json.dumps(d, separators=(",", ":")).encode()


def read(path):
    return lzma.open(path).read() if path.endswith(".xz") else open(path, "rb").read()


os.makedirs(DST, exist_ok=True)
for f in sorted(os.listdir(f"{SRC}/ggml-vocab")):
    p = f"{SRC}/ggml-vocab/{f}"
    if f.endswith((".inp", ".out")):
        shutil.copyfile(p, f"{DST}/{f}")
    elif f.endswith(".gguf.xz"):
        name = f[len("ggml-vocab-"):-len(".gguf.xz")]
        if name in FULL:
            shutil.copyfile(p, f"{DST}/{f}")
        elif name != "gpt-neox":
            pack(f"{DST}/{f}", prune_gguf(read(p)))
for n in ("deepseek_v3", "gptoss", "qwen3"):
    pack(f"{DST}/{n}.tokenizer.json.xz", prune_json(read(f"{SRC}/hf/{n}.tokenizer.json.xz")))
    shutil.copyfile(f"{SRC}/hf/{n}.tokenizer_config.json", f"{DST}/{n}.tokenizer_config.json")
pack(f"{DST}/whisper-multilingual.tokenizer.json.xz", read(f"{SRC}/hf/whisper-multilingual.tokenizer.json.xz"))
pack(f"{DST}/bert-minilm.tokenizer.json.xz", read(f"{SRC}/hf/bert-minilm.tokenizer.json"))
pack(f"{DST}/mistral-spm-v3.model.xz", read(f"{SRC}/mistral/mistral_instruct_tokenizer_240323.model.v3"))
pack(f"{DST}/tekken_240911.json.xz", prune_tekken(read(f"{SRC}/mistral/tekken_240911.json.xz")))
clip = gzip.open(f"{SRC}/clip/bpe_simple_vocab_16e6.txt.gz").read().split(b"\n")[:48895]
pack(f"{DST}/clip-merges.txt.xz", b"\n".join(clip) + b"\n")
for f in sorted(os.listdir(f"{SRC}/goldens")):
    pack(f"{DST}/golden-{f}.xz", read(f"{SRC}/goldens/{f}"))
pack(f"{DST}/texts.json.xz", read(f"{SRC}/texts.json"))
