"""The machine that a figure belongs to."""
import json
import os
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def cpu_model():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def roofline(realtime):
    """What the probe measures: {"read_bytes_per_s": ..., "bf16_ops_per_s": ..., ...}, or {} where it is not built."""
    probe = os.path.join(TOP, "build", "release", "tests", "bench", "roofline")
    if not os.path.exists(probe):
        return {}
    r = subprocess.run([*(["chrt", "-r", str(realtime)] if realtime else []), probe], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    return json.loads(r.stdout) if r.returncode == 0 else {}


def model_bytes(path):
    """Bytes of weights that one token reads: every tensor of the GGUF file once, but for a table of embeddings beside a head of
    its own. None if the file cannot be read."""
    binary = os.environ.get("STEPD", os.path.join(TOP, "build", "release", "stepd"))
    r = subprocess.run([binary, "inspect", "--json", path], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    if r.returncode:
        return None
    sizes = {t["name"]: t["bytes"] for t in json.loads(r.stdout)["tensors"]}
    return sum(n for name, n in sizes.items() if not (name == "token_embd.weight" and "output.weight" in sizes))


def describe(realtime=0):
    return {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "load_average_before": os.getloadavg()[0], **roofline(realtime)}


def text(m):
    line = f"{m['cpu']}, {m['cores']} cores, load average {m['load_average_before']:.1f}"
    if m.get("read_bytes_per_s"):
        line += f"; reads {m['read_bytes_per_s'] / 1e9:.1f} GB/s"
    for key, v in m.items():
        if key.endswith("_ops_per_s"):
            line += f", {key[:-10].replace('_', ' ')} {v / 1e12:.2f} Top/s"
    if m["load_average_before"] > 0.3 * m["cores"]:
        line += "\nwarning: this machine is busy; figures of a busy machine mean little"
    return line
