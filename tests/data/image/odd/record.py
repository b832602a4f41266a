#!/usr/bin/env python3
"""Makes the files of this folder that no camera makes, and records what Pillow reads in all of them: expected.txt (size, transparency,
SHA-256 of the upright RGBA where decoding is exact, 8 x 8 block means) and resize.bin.xz (its resampling). Needs Pillow and numpy;
run in this folder. Not part of the tests: its results are."""
import glob
import hashlib
import io
import lzma
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

MADE = {}  # name -> RGBA array where Pillow does not read the file as it should be read


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, depth, colour, rows, *extra):
    ihdr = struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + b"".join(extra) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows))) \
        + chunk(b"IEND", b"")


def tiff(orientation, big=False):
    o = ">" if big else "<"
    return (b"MM\0*" if big else b"II*\0") + struct.pack(o + "IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)


def save(name, data):
    with open(name, "wb") as f:
        f.write(data)


def odd_pngs():
    cat = np.asarray(Image.open("cat-rgb.png"))[:40, :50]
    grey = cat[..., 1]
    for bits in (2, 4):
        v = (grey >> (8 - bits)).astype(int)
        per = 8 // bits
        rows = []
        for r in np.pad(v, ((0, 0), (0, -v.shape[1] % per))):
            rows.append(bytes(sum(int(r[i + k]) << (8 - bits - bits * k) for k in range(per)) for i in range(0, len(r), per)))
        save(f"cat-gray{bits}.png", png(50, 40, bits, 0, rows))
    # One colour is transparent; a neighbour that differs in the low byte only is not.
    rgb16 = np.stack([cat.astype(np.uint16) * 256 + 7], 0)[0]
    rgb16[3, 4] = (0x1234, 0x5678, 0x9ABC)
    rgb16[3, 5] = (0x1234, 0x5678, 0x9ABD)
    trns = chunk(b"tRNS", struct.pack(">HHH", 0x1234, 0x5678, 0x9ABC))
    save("cat-rgb16-trns.png", png(50, 40, 16, 2, [r.astype(">u2").tobytes() for r in rgb16], trns))
    want = np.concatenate([(rgb16 >> 8).astype(np.uint8), np.full((40, 50, 1), 255, np.uint8)], 2)
    want[3, 4, 3] = 0
    MADE["cat-rgb16-trns.png"] = want
    trns = chunk(b"tRNS", struct.pack(">H", int(grey[0, 0])))
    save("cat-gray-trns.png", png(50, 40, 8, 0, [r.tobytes() for r in grey], trns))
    save("cat-exif6.png", png(50, 40, 8, 2, [r.tobytes() for r in cat], chunk(b"eXIf", tiff(6, True))))


def webp_chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def odd_webps():
    im = Image.open("cat-rgb.png").convert("RGB").crop((0, 0, 60, 44))
    b = io.BytesIO()
    im.save(b, "WEBP", lossless=True, exif=tiff(8))
    save("cat-exif8.webp", b.getvalue())
    b = io.BytesIO()
    im.crop((0, 0, 20, 16)).save(b, "WEBP", lossless=True)
    frame = b.getvalue()[12:]
    u24 = lambda v: struct.pack("<I", v)[:3]  # noqa: E731
    anmf = u24(8 // 2) + u24(6 // 2) + u24(19) + u24(15) + u24(100) + b"\0" + frame
    body = b"WEBP" + webp_chunk(b"VP8X", b"\x12\0\0\0" + u24(39) + u24(29)) + webp_chunk(b"ANIM", b"\xff\xff\xff\xff\0\0") \
        + webp_chunk(b"ANMF", anmf) + webp_chunk(b"ANMF", anmf)
    save("cat-anim-offset.webp", b"RIFF" + struct.pack("<I", len(body)) + body)


def segments(data):
    """(marker, start, end) of a JPEG file; entropy-coded data belongs to its SOS."""
    at, out = 2, []
    while at < len(data):
        assert data[at] == 0xFF
        m = data[at + 1]
        if m == 0xD9:
            out.append((m, at, at + 2))
            break
        end = at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]
        while m == 0xDA and not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
            end += 1
        out.append((m, at, end))
        at = end
    return out


def odd_jpegs():
    with open("coffee-cmyk.jpg", "rb") as f:
        data = f.read()
    adobe = next(s for s in segments(data) if s[0] == 0xEE)
    save("coffee-ycck.jpg", data[:adobe[2] - 1] + b"\2" + data[adobe[2]:])
    # Without Adobe's marker the values are ink as they stand. Pillow inverts in both directions, whatever the file says.
    ink = 255 - np.asarray(Image.open("coffee-cmyk.jpg").crop((80, 40, 200, 120)))
    b = io.BytesIO()
    Image.fromarray(ink, "CMYK").save(b, "JPEG", quality=95)
    plain = 255 - np.asarray(Image.open(b)).astype(int)
    data = b.getvalue()
    adobe = next(s for s in segments(data) if s[0] == 0xEE)
    save("coffee-cmyk-plain.jpg", data[:adobe[1]] + data[adobe[2]:])
    rgb = ((255 - plain[..., :3]) * (255 - plain[..., 3:]) + 127) // 255
    MADE["coffee-cmyk-plain.jpg"] = np.concatenate([rgb, np.full(rgb.shape[:2] + (1,), 255)], 2).astype(np.uint8)
    with open("coffee-progressive.jpg", "rb") as f:
        data = f.read()
    first = next(s for s in segments(data) if s[0] == 0xDA)
    save("bad-scans.jpg", data[:first[1]] + data[first[1]:first[2]] * 120 + data[first[2]:])
    # Few bytes and few scans, much work.
    b = io.BytesIO()
    Image.new("RGB", (5600, 5600), (90, 120, 30)).save(b, "JPEG", progressive=True, quality=90)
    data = b.getvalue()
    last = [s for s in segments(data) if s[0] == 0xDA][-1]
    with lzma.open("bad-work.jpg.xz", "wb", preset=9) as f:
        f.write(data[:last[1]] + data[last[1]:last[2]] * 10 + data[last[2]:])
    with open("cat-gray.jpg", "rb") as f:
        data = bytearray(f.read())
    sof = next(s for s in segments(bytes(data)) if s[0] == 0xC0)
    data[sof[1] + 4] = 12
    save("bad-12bit.jpg", bytes(data))
    data[sof[1] + 4] = 8
    data[sof[1] + 5:sof[1] + 9] = struct.pack(">HH", 60000, 60000)
    save("bad-bomb.jpg", bytes(data))
    im = Image.open("cat-rgb.png").convert("RGB").crop((0, 0, 61, 43))
    im.save("cat-restart.jpg", quality=90, restart_marker_blocks=3, exif=b"Exif\0\0" + tiff(5, True))


def upright(name):
    if name in MADE:
        return MADE[name], bool((MADE[name][..., 3] < 255).any())
    im = Image.open(name)
    frames = getattr(im, "n_frames", 1)
    im.seek(0)
    if im.mode == "I;16":
        im = Image.fromarray((np.asarray(im) >> 8).astype(np.uint8))
    alpha = "A" in im.mode or "transparency" in im.info
    im = ImageOps.exif_transpose(im).convert("RGBA")
    a = np.asarray(im)
    # Pillow reads every animated WebP as RGBA.
    return a, alpha and (frames == 1 or bool((a[..., 3] < 255).any()))


def means(a):
    h, w = a.shape[:2]
    cut = lambda n: [(i * n // 8, max(i * n // 8 + 1, (i + 1) * n // 8)) for i in range(8)]  # noqa: E731
    m = [[a[y0:y1, x0:x1].reshape(-1, 4).mean(0) for x0, x1 in cut(w)] for y0, y1 in cut(h)]
    return np.floor(np.array(m) + 0.5).astype(np.uint8).tobytes().hex()


def record_files():
    lines = ["# name, width and height upright, transparency, SHA-256 of RGBA (- = lossy), means of 8 x 8 blocks (RGBA, hex)\n"]
    for name in sorted(glob.glob("*.png") + glob.glob("*.jpg") + glob.glob("*.webp")):
        if name.startswith("bad-"):
            continue
        a, alpha = upright(name)
        lossy = name.endswith(".jpg") or (name.endswith(".webp") and b"VP8L" not in open(name, "rb").read())
        sha = "-" if lossy else hashlib.sha256(a.tobytes()).hexdigest()
        lines.append(f"{name} {a.shape[1]} {a.shape[0]} {int(alpha)} {sha} {means(a)}\n")
    with open("expected.txt", "w") as f:
        f.writelines(lines)


def area(a, n, axis):
    """Exact averages of areas, in double."""
    a = np.moveaxis(a.astype(float), axis, 0)
    m, out = a.shape[0], []
    for o in range(n):
        lo, hi = o * m / n, (o + 1) * m / n
        w = np.clip(np.minimum(np.arange(m) + 1, hi) - np.maximum(np.arange(m), lo), 0, None)
        out.append(np.tensordot(w / w.sum(), a, 1))
    return np.moveaxis(np.array(out), 0, axis)


def record_resize():
    """Sets of u16 width, height, from (0 = RGBA, 1 = RGB), then pixels: colours times alpha / 255, alpha. Resampled in that
    form, as four plain channels: Pillow's own way back from it is coarse where alpha is low."""
    pm = np.asarray(Image.open("astronaut-rgba.png")).astype(float)
    pm[..., :3] *= pm[..., 3:] / 255
    rgba = Image.frombytes("CMYK", (128, 128), np.floor(pm + 0.5).astype(np.uint8).tobytes())
    rgb = Image.open("astronaut-rgba.png").convert("RGB").convert("RGBA")
    out = b""

    def put(kind, a):
        nonlocal out
        a = np.asarray(a).astype(float)
        a[..., :3] = np.minimum(a[..., :3], a[..., 3:])  # the cubic overshoots; straight alpha cannot say so
        out += struct.pack("<HHH", a.shape[1], a.shape[0], kind) + np.floor(a + 0.5).astype(np.uint8).tobytes()

    put(0, rgba.resize((32, 16), Image.BOX))
    put(0, rgba.resize((200, 150), Image.BICUBIC))
    put(1, rgb.resize((64, 64), Image.BOX))
    put(1, rgb.resize((131, 260), Image.BICUBIC))
    put(1, rgb.resize((64, 128), Image.BOX).resize((64, 190), Image.BICUBIC))
    put(1, area(area(np.asarray(rgb), 50, 1), 37, 0))
    put(0, area(area(pm, 127, 1), 3, 0))
    with lzma.open("resize.bin.xz", "wb", preset=9) as f:
        f.write(out)


odd_pngs()
odd_webps()
odd_jpegs()
record_files()
record_resize()
