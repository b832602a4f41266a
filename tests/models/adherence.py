"""How well pictures of models/tiny-t2i follow their prompts: one shape of a colour at a place on a background. Pictures
are 64 x 64 lists of RGB rows; standard library only. The measures are those of models/tiny-t2i/README.md."""
import hashlib
import math
import zlib

# The names are the model's own; the values are what it paints backgrounds of these names with (record_adherence.py --colours), to
# the next 5.
COLOURS = {"red": (220, 40, 40), "green": (40, 155, 65), "blue": (40, 80, 220), "yellow": (250, 220, 50), "orange": (250, 140, 30),
           "purple": (135, 50, 180), "pink": (250, 140, 190), "cyan": (60, 200, 230), "brown": (135, 80, 55), "black": (25, 30, 30),
           "white": (245, 240, 245), "gray": (140, 140, 145)}
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond", "hexagon")
PLACES = ("in the top left corner", "at the top", "in the top right corner", "on the left", "in the center", "on the right",
          "in the bottom left corner", "at the bottom", "in the bottom right corner")  # row by row of a 3 x 3 grid
CUTS = (0.4, 0.6)


def held_out():
    """(colour, shape, background) that the model was never trained on."""
    return [(c, s, b) for c in COLOURS for s in SHAPES for b in COLOURS
            if c != b and zlib.crc32(f"{c}|{s}|{b}".encode()) % 8 == 0]


def prompts(n=60):
    """[{prompt, colour, shape, background, place, seed}]: held-out triples in an order without meaning, every place as
    often as the others."""
    triples = sorted(held_out(), key=lambda t: hashlib.sha256("|".join(t).encode()).digest())[:n]
    return [{"prompt": f"{'an' if c[0] in 'aeiou' else 'a'} {c} {s} {PLACES[i % 9]} on {'an' if b[0] in 'aeiou' else 'a'} {b} background",
             "colour": c, "shape": s, "background": b, "place": i % 9, "seed": 1000 + i} for i, (c, s, b) in enumerate(triples)]


def nearest(p):
    return min(COLOURS, key=lambda c: sum((a - b) ** 2 for a, b in zip(p, COLOURS[c])))


def border(rows):
    """Median of the outermost pixels, by channel."""
    edge = rows[0] + rows[-1] + [r[0] for r in rows[1:-1]] + [r[-1] for r in rows[1:-1]]
    return tuple(sorted(p[k] for p in edge)[len(edge) // 2] for k in range(3))


def look(rows, apart=60):
    """(background, colour or None, cell or None) of a picture; `apart`: distance in RGB from where on a pixel is no
    background."""
    ground = border(rows)
    found = [(x, y, p) for y, r in enumerate(rows) for x, p in enumerate(r) if math.dist(p, ground) > apart]
    if not found:
        return nearest(ground), None, None
    names = [nearest(p) for _, _, p in found]
    background = nearest(ground)
    shape = [n for n in names if n != background] or names
    cell = [sum(v / len(found) / size > c for c in CUTS) for v, size in
            ((sum(x + 0.5 for x, _, _ in found), len(rows[0])), (sum(y + 0.5 for _, y, _ in found), len(rows)))]
    return background, max(sorted(set(shape)), key=shape.count), cell[1] * 3 + cell[0]


def score(asked, pictures):
    """{background, colour, position, both}: per cent of the pictures that are what was asked."""
    got = [look(p) for p in pictures]
    right = {"background": [g[0] == a["background"] for a, g in zip(asked, got)],
             "colour": [g[1] == a["colour"] for a, g in zip(asked, got)],
             "position": [g[2] == a["place"] for a, g in zip(asked, got)]}
    right["both"] = [c and p for c, p in zip(right["colour"], right["position"])]
    return {k: round(100 * sum(v) / len(v), 1) for k, v in right.items()}


def rows_of(image):
    """A Pillow picture as rows."""
    image = image.convert("RGB")
    data = image.tobytes()
    w = image.width * 3
    return [[tuple(data[y * w + x:y * w + x + 3]) for x in range(0, w, 3)] for y in range(image.height)]
