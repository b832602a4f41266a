#!/usr/bin/env python3
"""Side by side in one run: pictures with stepd, with diffusers on PyTorch's CPU backend, and with stable-diffusion.cpp.

    compare_images.py [--rounds 3] [--slow-rounds 1] [--cases tiny-1,tiny-8,sd15] [--threads N] [--only ENGINE] [--realtime]
                      [--torch-tries ...] [--sd-tries ...]

Seconds of a denoising step and of decoding one picture: tiny-t2i at 64x64 for 1 and 8 pictures, and Stable Diffusion 1.5 at 512x512 with
random weights (random_sd15.py makes them once, 4 GB in build/bench/sd15). A step is one call of the UNet for twice the batch
(classifier-free guidance 7.5), guidance and the sampler. Engines take turns, each run a process of its own, and the order turns from
round to round; figures are medians of a run's steps, the first left out, and then of the rounds.

Both others run at their best. PyTorch: float32 and bfloat16, each with and without channels_last, are tried before the rounds, the fastest is
what takes part (one for steps, one for decoding). stable-diffusion.cpp: its defaults, flash attention, direct convolutions, both, at 128x128. It has the
shapes of known models built in, so tiny-t2i is no model for it: it is asked each time, and what comes of it is kept. All use as
many threads as there are cores. $BENCH_TORCH_PYTHON and $BENCH_SD_PYTHON name interpreters that have the two; default is
.venv-bench-images. --realtime gives each run the cores of a busy machine (chrt -f, needs root). stable-diffusion.cpp is built for AVX-512
without AMX (conf/setup.sh says why), so there is a column for stepd held to AVX-512 as well."""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

BENCH = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(BENCH))
VENV = os.path.join(TOP, ".venv-bench-images", "bin", "python")
TORCH_PY = os.environ.get("BENCH_TORCH_PYTHON", VENV)
SD_PY = os.environ.get("BENCH_SD_PYTHON", VENV)
PROGRAM = os.path.join(TOP, "build", "release", "tests", "bench", "bench_image")
SD15 = os.path.join(TOP, "build", "bench", "sd15")
GUIDANCE = 7.5

# steps of a run; of stable-diffusion.cpp's, one more than these (slow)
CASES = {
    "tiny-1": {"model": os.path.join(TOP, "models", "tiny-t2i"), "file": None, "size": 64, "batch": 1, "steps": 16, "slow": 16},
    "tiny-8": {"model": os.path.join(TOP, "models", "tiny-t2i"), "file": None, "size": 64, "batch": 8, "steps": 8, "slow": 8},
    "sd15": {"model": os.path.join(SD15, "diffusers"), "file": os.path.join(SD15, "sd15.safetensors"), "size": 512, "batch": 1,
             "steps": 3, "slow": 1},
}
NAMES = {"tiny-1": "tiny-t2i 64x64, 1 picture", "tiny-8": "tiny-t2i 64x64, 8 pictures", "sd15": "SD 1.5 512x512, 1 picture"}
ENGINES = ("stepd", "stepd avx512", "pytorch", "sd.cpp")
SLOW = ("stepd avx512", "sd.cpp")
TORCH_VARIANTS = [f"{d}{c}" for d in ("bfloat16", "float32") for c in ("", " channels_last")]
SD_VARIANTS = ["", "flash", "direct", "flash direct"]


# ---- children: one run of one engine ----

def child_torch(a):
    """a: model, size, batch, steps, threads; step, decode: variants or None."""
    import torch
    import diffusers
    torch.set_num_threads(a["threads"])
    out = {"version": f"torch {torch.__version__}, diffusers {diffusers.__version__}"}

    def load(cls, part, variant):
        words = variant.split()
        m = cls.from_pretrained(os.path.join(a["model"], part), torch_dtype=getattr(torch, words[0])).eval()
        return m.to(memory_format=torch.channels_last) if "channels_last" in words else m

    torch.manual_seed(1)
    with torch.inference_mode():
        if a["step"]:
            unet = load(diffusers.UNet2DConditionModel, "unet", a["step"])
            sched = diffusers.DDIMScheduler.from_pretrained(os.path.join(a["model"], "scheduler"))
            sched.set_timesteps(50)
            with open(os.path.join(a["model"], "text_encoder", "config.json")) as f:
                n_text = json.load(f)["max_position_embeddings"]
            # the sample's size is the VAE's input size over its factor, which this UNet was made for
            side = unet.config.sample_size
            x = torch.randn(a["batch"], unet.config.in_channels, side, side).to(unet.dtype)
            text = torch.randn(2 * a["batch"], n_text, unet.config.cross_attention_dim).to(unet.dtype)
            times = []
            for t in sched.timesteps[:a["steps"]]:
                began = time.perf_counter()
                away, towards = unet(torch.cat([x, x]), t, encoder_hidden_states=text).sample.chunk(2)
                x = sched.step(away + GUIDANCE * (towards - away), t, x).prev_sample
                times.append(time.perf_counter() - began)
            out["step_s"], out["steps"] = statistics.median(times[1:]), times
            del unet
        if a["decode"]:
            vae = load(diffusers.AutoencoderKL, "vae", a["decode"])
            side = a["size"] // 2 ** (len(vae.config.block_out_channels) - 1)
            z = torch.randn(1, vae.config.latent_channels, side, side).to(vae.dtype)
            times = []
            for _ in range(3):
                began = time.perf_counter()
                vae.decode(z).sample
                times.append(time.perf_counter() - began)
            out["decode_s"], out["decodes"] = statistics.median(times[1:]), times
    return out


def child_sd(a):
    """a: file or model, size, batch, steps, threads, variant. Its own log says how long decoding took."""
    import ctypes
    import re
    import stable_diffusion_cpp as sd
    lines, at = [], []

    @sd.sd_log_callback
    def log(level, text, data):
        lines.append(text.decode("utf-8", "replace").strip())

    sd.sd_set_log_callback(log, ctypes.c_void_p(0))
    words = a["variant"].split()
    out = {"version": f"stable-diffusion-cpp-python {sd.__version__}", "system": sd.sd_get_system_info().decode().split("\n")}
    direct = "direct" in words
    try:
        m = sd.StableDiffusion(model_path=a["file"] or a["model"], n_threads=a["threads"], vae_decode_only=True,
                               diffusion_flash_attn="flash" in words, flash_attn="flash" in words, diffusion_conv_direct=direct,
                               vae_conv_direct=direct, verbose=True)
        images = m.generate_image(prompt="a red circle", width=a["size"], height=a["size"], cfg_scale=GUIDANCE, sample_method="euler",
                                  sample_steps=a["steps"], batch_count=a["batch"], seed=1,
                                  progress_callback=lambda step, steps, t: at.append((step, time.perf_counter())))
        assert images
    except Exception as e:  # whatever a foreign library says of a model that it does not know
        bad = [x for x in lines if re.search("error|fail|unknown|not support|wrong", x, re.I)]
        return dict(out, failed=" / ".join((bad or lines)[-3:] + [str(e)])[-600:])
    done = [(s, t) for s, t in at if 0 < s <= a["steps"]]
    gaps = [t1 - t0 for (s0, t0), (s1, t1) in zip(done, done[1:]) if s1 == s0 + 1]
    out["step_s"], out["steps"] = statistics.median(gaps), gaps
    out["decode_s"] = statistics.median(float(x) for x in re.findall(r"latent \d+ decoded, taking ([\d.]+)s", "\n".join(lines)))
    return out


# ---- parent ----

class Runs:
    def __init__(self, a):
        self.a = a
        self.before = ["chrt", "-f", str(a.realtime)] if a.realtime else []
        self.best = {}    # (engine, case) -> variants
        self.tried = {}   # "engine case variant" -> what was measured while choosing

    def run(self, cmd, limit=1800):
        env = dict(os.environ, OMP_NUM_THREADS=str(self.a.threads), HF_HUB_OFFLINE="1")
        r = subprocess.run(self.before + cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit, env=env)
        lines = [x for x in r.stdout.splitlines() if x.startswith("{")]
        if not lines:
            how = f"killed by signal {-r.returncode}" if r.returncode < 0 else f"exit status {r.returncode}"
            return {"failed": f"{how} {r.stderr[-400:].strip()}".strip()}
        return json.loads(lines[-1])

    def stepd(self, case, extra=()):
        c, rounds = CASES[case], "1" if case == "sd15" and extra else "3"
        return self.run([PROGRAM, c["model"], "--threads", str(self.a.threads), "--size", str(c["size"]), "--batch", str(c["batch"]),
                         "--steps", str(c["steps"]), "--rounds", rounds, "--guidance", str(GUIDANCE), *extra])

    def child(self, python, name, args):
        return self.run([python, os.path.abspath(__file__), "--child", name, json.dumps(args)])

    def pytorch(self, case, step=None, decode=None):
        c = CASES[case]
        args = {"model": c["model"], "size": c["size"], "batch": c["batch"], "steps": c["steps"], "threads": self.a.threads}
        if step or decode:
            return self.child(TORCH_PY, "torch", dict(args, step=step, decode=decode))
        if case not in self.best:
            got = {v: self.pytorch(case, v, v) for v in self.a.torch_tries}
            self.tried.update({f"pytorch {case} {v}": r for v, r in got.items()})
            good = {v: r for v, r in got.items() if "failed" not in r}
            if not good:
                return next(iter(got.values()))
            self.best[case] = [min(good, key=lambda v: good[v][k]) for k in ("step_s", "decode_s")]
            print(f"pytorch {case}: " + "; ".join(f"{v} {r.get('step_s', 0):.4f} + {r.get('decode_s', 0):.4f} s" for v, r in got.items()),
                  flush=True)
        return self.pytorch(case, *self.best[case])

    def sd(self, case, variant=None, size=None):
        c = CASES[case]
        if variant is not None:
            return self.child(SD_PY, "sd", {"file": c["file"], "model": c["model"], "size": size or c["size"], "batch": c["batch"],
                                            "steps": c["slow"] + 1, "threads": self.a.threads, "variant": variant})
        if ("sd", case) not in self.best:
            got = {}
            for v in self.a.sd_tries:
                got[v] = self.sd(case, v, min(c["size"], 128))  # a step takes most of a minute at full size
                if "failed" in got[v]:
                    break
            self.tried.update({f"sd.cpp {case} {v or 'default'}": r for v, r in got.items()})
            good = {v: r for v, r in got.items() if "failed" not in r}
            if not good:
                return next(iter(got.values()))
            # one run gives both figures: the variant that is faster for a picture of 20 steps
            self.best["sd", case] = min(good, key=lambda v: 20 * good[v]["step_s"] + good[v]["decode_s"])
            print(f"sd.cpp {case}: " + "; ".join(f"{v or 'default'} {r['step_s']:.2f} + {r['decode_s']:.2f} s" for v, r in good.items()),
                  flush=True)
        return self.sd(case, self.best["sd", case])

    def one(self, engine, case):
        if engine == "stepd":
            return self.stepd(case)
        if engine == "stepd avx512":
            return self.stepd(case, ["--isa", "avx512"])
        return self.pytorch(case) if engine == "pytorch" else self.sd(case)


def cpu_model():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def table(runs, cases, engines):
    """Rows of cases and stages; ratios are how many times faster stepd is."""
    others = [e for e in engines if not e.startswith("stepd")] if "stepd" in engines else []
    lines = ["| seconds | " + " | ".join(engines) + "".join(f" | {o} / stepd" for o in others) + " |",
             "|---|" + "---|" * (len(engines) + len(others))]
    for case in cases:
        for key, name in (("step_s", "a step"), ("decode_s", "decoding one")):
            med = {}
            for e in engines:
                got = [r[key] for r in runs[e, case] if key in r]
                med[e] = statistics.median(got) if got else None
            cells = [f"{med[e]:.3g}" if med[e] else "-" for e in engines]
            cells += [f"{med[o] / med['stepd']:.2f}" if med[o] and med["stepd"] else "-" for o in others]
            lines.append(f"| {NAMES[case]}: {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--cases", type=lambda s: s.split(","), default=list(CASES))
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--only", action="append", choices=ENGINES)
    ap.add_argument("--realtime", type=int, nargs="?", const=50, metavar="PRIORITY", help="chrt -f PRIORITY (50) for each run")
    ap.add_argument("--slow-rounds", type=int, default=1, help="rounds that slow engines take part in on sd15")
    ap.add_argument("--torch-tries", type=lambda s: s.split(","), default=TORCH_VARIANTS)
    ap.add_argument("--sd-tries", type=lambda s: s.split(","), default=SD_VARIANTS)
    a = ap.parse_args()
    for c in a.cases:
        if c not in CASES:
            ap.error(f"--cases: {c} is not one of {', '.join(CASES)}")
    return a


def main():
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps({"torch": child_torch, "sd": child_sd}[sys.argv[2]](json.loads(sys.argv[3]))), flush=True)
        return 0
    a = options()
    if "sd15" in a.cases:
        subprocess.run([TORCH_PY, os.path.join(BENCH, "random_sd15.py"), SD15], check=True)
    before = os.getloadavg()[0]
    if before > 0.3 * a.threads and not a.realtime:
        print(f"warning: the load average is {before:.1f} before the start; figures of a busy machine mean little", flush=True)
    engines = [e for e in ENGINES if not a.only or e in a.only]
    r, runs = Runs(a), {(e, c): [] for e in engines for c in a.cases}
    for i in range(a.rounds):
        for case in a.cases:
            for e in engines if i % 2 == 0 else engines[::-1]:
                if case == "sd15" and e in SLOW and i >= a.slow_rounds:
                    continue
                one = r.one(e, case)
                runs[e, case].append(one)
                what = one.get("failed") or f"step {one['step_s']:.4f} s, decoding {one['decode_s']:.4f} s"
                print(f"round {i + 1} {case:7} {e:12} {what}", flush=True)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, stdout=subprocess.PIPE, text=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    where = {"date": now.strftime("%Y-%m-%dT%H:%MZ"), "commit": git.stdout.strip() or "unknown", "cpu": cpu_model(),
             "threads": a.threads, "load_average_before": before, "realtime": a.realtime, "rounds": a.rounds,
             "best": {str(k): v for k, v in r.best.items()}}
    text = table(runs, a.cases, engines)
    print(f"\n{where['cpu']}, {a.threads} threads; medians of {a.rounds} rounds\nbest variants: {where['best']}\n\n{text}")
    folder = os.path.join(BENCH, "history")
    os.makedirs(folder, exist_ok=True)
    part = "" if a.cases == list(CASES) else "-" + "-".join(a.cases)
    path = os.path.join(folder, f"{now.strftime('%Y-%m-%d')}-{where['commit']}-images{part}.json")
    with open(path, "w") as f:
        json.dump(dict(where, runs={f"{e}: {c}": v for (e, c), v in runs.items()}, tried=r.tried, table=text), f, indent=1)
        f.write("\n")
    print(f"\nkept in {os.path.relpath(path, TOP)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
