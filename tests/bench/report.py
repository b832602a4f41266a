"""Medians of rounds, ratios against the best peer, the table."""
import statistics

LINES = (  # key, heading, more is better
    ("output_tokens_per_s", "output tokens/s", True),
    ("ttft_ms", "TTFT, ms", False),
    ("tpot_ms", "TPOT, ms", False),
    ("prefill_tokens_per_s", "prefill tokens/s", True),
)
OURS = ("stepd", "stepd plain", "stepd int8", "stepd avx2")


def form(v):
    if v is None:
        return "-"
    return f"{v:.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def medians(rounds):
    """{key: median} of the rounds that have figures; `cut` is the share of requests that the time limit cut, `error` the last one."""
    good = [r for r in rounds if "error" not in r]
    out = {}
    for key, _, _ in LINES:
        values = [r[key] for r in good if r.get(key) is not None]
        if values:
            out[key] = statistics.median(values)
    cut = sum(r.get("cut", 0) for r in good)
    if cut:
        out["cut"] = cut / (cut + sum(r["requests"] for r in good))
    bad = [r["error"] for r in rounds if "error" in r]
    if bad:
        out["error"] = bad[-1]
    return out


def best(values, more):
    """(name, value) of the best peer of {name: value or None}, or None."""
    have = [(v, k) for k, v in values.items() if v]
    if not have:
        return None
    v, k = (max if more else min)(have)
    return k, v


def ratio(ours, theirs, more):
    """How many times better ours is: above 1 = better, whichever way the figure goes."""
    if not ours or not theirs:
        return None
    return ours / theirs if more else theirs / ours


def row(name, values, ours, peers, more, cut=()):
    """A line: every kind's figure, the best peer, and how many times better each of ours is. `cut`: kinds whose figure is a bound."""
    top = best({k: values.get(k) for k in peers}, more)
    cells = [form(values.get(k)) + ("*" if k in cut and values.get(k) is not None else "") for k in (*ours, *peers)]
    cells.append(top[0] if top else "-")
    for k in ours:
        r = ratio(values.get(k), top[1], more) if top else None
        cells.append(f"{r:.2f}" if r else "-")
    return f"| {name} | " + " | ".join(cells) + " |"


def table(results, starts, kinds):
    """results: {cell: {kind: medians}} in order; starts: {kind: {"start_s", "memory_mb"}}. Markdown."""
    ours, peers = [k for k in kinds if k in OURS], [k for k in kinds if k not in OURS]
    head = ["", *ours, *peers, "best peer", *(f"{k} : best peer" for k in ours)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cell, by in results.items():
        for key, title, more in LINES:
            values = {k: by[k].get(key) for k in by}
            if any(v is not None for v in values.values()):
                lines.append(row(f"{cell}: {title}", values, ours, peers, more, [k for k in by if by[k].get("cut")]))
    for key, title in (("start_s", "start to first answered token, s"), ("memory_mb", "resident memory, MB")):
        values = {k: starts[k].get(key) for k in starts}
        if any(v is not None for v in values.values()):
            lines.append(row(title, values, ours, peers, False))
    return "\n".join(lines)


def roofline(results, machine, model_bytes):
    """How near decoding alone and prefill come to what the machine can do."""
    out, bandwidth = [], machine.get("read_bytes_per_s")
    for cell, by in results.items():
        for k in OURS:
            tpot = by.get(k, {}).get("tpot_ms")
            if k != "stepd plain" and "stepd plain" in by:
                continue  # guesses spare steps: not every token reads the weights
            if tpot and bandwidth and model_bytes and cell.endswith(", 1 stream"):
                rate = model_bytes / tpot * 1e3
                out.append(f"- {cell}, {k}: decode at 1 stream = {100 * rate / bandwidth:.0f} % of the read bandwidth "
                           f"({model_bytes / 1e6:.0f} MB of weights a token, {rate / 1e9:.1f} of {bandwidth / 1e9:.1f} GB/s)")
    return out


def notes(results, absent, settings):
    """What the table does not say of itself: settings, peers that are not there, errors, cuts."""
    out = [f"- {k}: {v}" for k, v in settings.items()]
    out += [f"- {k}: NOT MEASURED: {why}" for k, why in absent.items()]
    for cell, by in results.items():
        for k, m in by.items():
            if m.get("error"):
                out.append(f"- {cell}, {k}: {m['error']}")
            if m.get("cut"):
                out.append(f"- {cell}, {k}: * the time limit cut {100 * m['cut']:.0f} % of its requests: its times are those of what was "
                           "answered, or lower bounds")
    return "\n".join(out)
