"""The machine that a figure belongs to."""
import json
import os
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def cpu_model():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def roofline():
    """What the probe measures: {"read_bytes_per_s": ..., "bf16_ops_per_s": ..., ...}, or {} where it is not built."""
    probe = os.path.join(TOP, "build", "release", "tests", "bench", "roofline")
    if not os.path.exists(probe):
        return {}
    r = subprocess.run([probe], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    return json.loads(r.stdout) if r.returncode == 0 else {}


def describe():
    return {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "load_average_before": os.getloadavg()[0], **roofline()}


def text(m):
    line = f"{m['cpu']}, {m['cores']} cores, load average {m['load_average_before']:.1f}"
    if m.get("read_bytes_per_s"):
        line += f"; reads {m['read_bytes_per_s'] / 1e9:.1f} GB/s"
    for key in ("bf16", "int8", "f32"):
        if m.get(key + "_ops_per_s"):
            line += f", {key} {m[key + '_ops_per_s'] / 1e12:.2f} Top/s"
    if m["load_average_before"] > 0.3 * m["cores"]:
        line += "\nwarning: this machine is busy; figures of a busy machine mean little"
    return line
