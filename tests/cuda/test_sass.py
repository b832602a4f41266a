#!/usr/bin/env python3
"""Builds the CUDA plug-in and checks the machine code of every kernel, for every architecture that it is built for.

No warning of the compiler; no spilled registers and no local memory, save what LOCAL grants a kernel; the instructions
that a file claims (CLAIMS) are there. Prints registers, shared memory and stack of each kernel. Exit status 77, with the
reason, where compiler or disassembler cannot be had (conf/setup.sh cuda).

    tests/cuda/test_sass.py [--table]      (--table: print the table even when all is well)"""
import glob
import os
import re
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OBJ = os.path.join(TOP, "build", "cuda", "cuda")
ARCHS = ("sm_80", "sm_90a", "sm_100")
# (kernel, architecture or None for all) -> (bytes of stack that it may use, why). It may shrink, not grow.
LOCAL = {
    ("rope_kv", None): (32, "sinf and cosf of large angles: their reduction is a branch that only angles past about 1e5 take"),
    ("attn_any", None): (16, "the fallback for shapes that tensor cores don't take; not tuned"),
    ("gemm_quant", "sm_100"): (8, "one of its instances (six bits, groups of 16, few rows) spills 28 bytes there, none on sm_80 and sm_90a"),
    ("mla_kv", None): (40, "as rope_kv: sinf and cosf of large angles; into int8 and fp8 up to 16 bytes spilled a row"),
    ("index_kv", None): (40, "as rope_kv: sinf and cosf of large angles; into int8 up to 16 bytes spilled a row"),
    ("index_score", None): (16, "up to 24 bytes spilled a tile of scores in five of its instances; not tuned on a device"),
    ("attn_decode", "sm_80"): (16, "of int8 and fp8 KV: up to 28 bytes spilled a page, none on sm_90a and sm_100; not tuned on a device"),
    ("mla_attn", None): (120, "32 latent values a thread and half as many sums: up to 112 bytes spilled a row, 288 of int8 and fp8; not tuned on a device"),
    ("gemm_experts", None): (88, "a row's expert and its place cost registers that gemm_quant has free: up to 244 bytes spilled a tile; not tuned"),
    ("conv_kernel", None): (64, "taps and past inputs lie in arrays that loops of run-time length index"),
    ("sample", "sm_100"): (16, "1024 threads leave 64 registers; 28 bytes spilled once a row, none on sm_80 and sm_90a"),
}
# file -> (architecture or None for all, instruction) that its code must hold
CLAIMS = {
    "attn_mma.cu": [(None, "HMMA")],
    "gemm_quant.cu": [(None, "HMMA")],
    "gemm_wgmma.cu": [("sm_90a", "HGMMA"), ("sm_90a", "UTMALDG")],
    "attn_wgmma.cu": [("sm_90a", "HGMMA"), ("sm_90a", "LDGSTS")],
}


def skip(why):
    print(f"skipped: {why}\n0 passed, 0 failed, 1 skipped")
    sys.exit(77)


def tool(name):
    """A disassembler: of the wheels, else of $CUDA_HOME or PATH."""
    for path in glob.glob(os.path.join(TOP, ".cuda/lib/python*/site-packages/nvidia/cu13/bin", name)):
        return path
    home = os.path.join(os.environ.get("CUDA_HOME", "/nonexistent"), "bin", name)
    return home if os.path.exists(home) else shutil.which(name)


def demangle(names):
    try:
        out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return dict(zip(names, names))
    short = [re.sub(r"^(void|int) ", "", re.sub(r"\(anonymous namespace\)::", "", s)).split("(")[0] for s in out.splitlines()]
    return dict(zip(names, short))


def ptxas(text):
    """{(kernel, arch): {regs, smem, stack, spill}} of the assembler's report."""
    out, at = {}, None
    for line in text.splitlines():
        m = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
        if m:
            at = out.setdefault(m.groups(), {"regs": 0, "smem": 0, "stack": 0, "spill": 0})
        m = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if m and at is not None:
            at["stack"], at["spill"] = int(m.group(1)), int(m.group(2)) + int(m.group(3))
        m = re.search(r"Used (\d+) registers", line)
        if m and at is not None:
            at["regs"] = int(m.group(1))
            s = re.search(r"(\d+) bytes smem", line)
            at["smem"] = int(s.group(1)) if s else 0
    return out


def sass(obj, cuobjdump, path):
    """{(kernel, arch): set of instructions without suffixes} of an object."""
    text = subprocess.run([cuobjdump, "-sass", obj], capture_output=True, text=True, check=True,
                          env=dict(os.environ, PATH=path)).stdout
    out, arch, ops = {}, None, None
    for line in text.splitlines():
        m = re.match(r"\s*arch = (\S+)", line)
        if m:
            arch = m.group(1)
        m = re.match(r"\s*Function : (\S+)", line)
        if m:
            ops = out.setdefault((m.group(1), arch), set())
        m = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line)
        if m and ops is not None:
            ops.add(m.group(1))
    return out


def check_file(name, cuobjdump, path, bad, rows):
    """Adds breaches to `bad` and one row a kernel and architecture to `rows`."""
    with open(os.path.join(OBJ, name + ".ptxas"), encoding="utf-8") as f:
        report = f.read()
    for line in report.splitlines():
        if "warning" in line.lower() and "spilled to local" not in line:  # spills are judged by kernel
            bad.append(f"{name}: {line.strip()}")
    with open(os.path.join(TOP, "cuda", name), encoding="utf-8") as f:
        if "__global__" not in f.read():  # host code in C++
            return
    use, code = ptxas(report), sass(os.path.join(OBJ, name + ".o"), cuobjdump, path)
    if not code:
        bad.append(f"{name}: no kernel in its object")
    names = demangle(sorted({k for k, _ in code}))
    for arch in ARCHS:
        if not any(a == arch for _, a in code):
            bad.append(f"{name}: nothing for {arch}")
    for (kernel, arch), ops in sorted(code.items()):
        u = use.get((kernel, arch), {"regs": 0, "smem": 0, "stack": 0, "spill": 0})
        local = sorted(ops & {"LDL", "STL"})
        rows.append((name, names[kernel], arch, u["regs"], u["smem"], u["stack"], u["spill"], " ".join(local)))
        short = names[kernel].split("<")[0]
        grant = max((LOCAL.get((short, a), (0, ""))[0] for a in (None, arch)))
        if (local or u["spill"]) and u["stack"] > grant or local and not u["stack"]:
            bad.append(f"{name}: {names[kernel]} {arch}: local memory ({' '.join(local)}, stack {u['stack']}, spills {u['spill']})")
        if not ops:
            bad.append(f"{name}: {names[kernel]} {arch}: no instruction was read")
    for arch, op in CLAIMS.get(name, []):
        for a in [arch] if arch else ARCHS:
            if not any(op in ops for (_, at), ops in code.items() if at == a):
                bad.append(f"{name}: no {op} for {a}")


def main():
    nvcc = tool("nvcc")
    cuobjdump, nvdisasm = tool("cuobjdump"), tool("nvdisasm")
    if not nvcc or not cuobjdump or not nvdisasm:
        missing = [n for n, p in (("nvcc", nvcc), ("cuobjdump", cuobjdump), ("nvdisasm", nvdisasm)) if not p]
        skip(f"no {', no '.join(missing)} on CUDA_HOME, PATH or in .cuda (conf/setup.sh cuda; build/cuda-setup.log)")
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VARIANT", "ARCHS")}
    r = subprocess.run(["make", "-s", "-j2", "cuda"], cwd=TOP, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode:
        print(r.stdout + "\nthe kernels do not compile\n0 passed, 1 failed")
        return 1
    bad, rows = [], []
    files = sorted(os.path.basename(p) for p in glob.glob(os.path.join(TOP, "cuda", "*.cu")))
    path = os.path.dirname(nvdisasm) + os.pathsep + os.environ.get("PATH", "")
    for name in files:
        check_file(name, cuobjdump, path, bad, rows)
    if bad or "--table" in sys.argv:
        print(f"{'file':16} {'kernel':48} {'arch':7} regs   smem  stack spill local")
        for r in rows:
            print(f"{r[0]:16} {r[1][:48]:48} {r[2]:7} {r[3]:4} {r[4]:6} {r[5]:6} {r[6]:5} {r[7]}")
    for b in bad:
        print("FAILED", b)
    print(f"{len(rows)} kernels in {len(files)} files\n{max(len(rows) - len(bad), 0)} passed, {len(bad)} failed")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
