#!/usr/bin/env python3
"""Plants one bug at a time in a copy of a kernel and checks that the emulation sees it, by what is named: wrong values in
one of four thread orders (value), the address sanitizer (asan), the race detector (tsan), or an abort of the emulation
(emu). A mutation that no longer applies, or that nothing sees, fails.

    tests/cuda/test_mutants.py [--all]      eight kinds of bug by default; --all: the whole list

Each kernel's own test judges, built with the one mutated object in place of the right one."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = {"release": ["-O2"], "asan": ["-O1", "-fsanitize=address,bounds,alignment", "-fno-sanitize-recover=all"],
         "tsan": ["-O1", "-fsanitize=thread"]}
SEEN = {"value": r"FAILED ", "asan": r"AddressSanitizer: \S+|runtime error",
        "tsan": r"ThreadSanitizer: data race", "emu": r"^emu: "}

# name, kernel file, test, variant to build, who must see it, pattern, replacement, in the short list
MUTANTS = [
    ("missing barrier: sum over a block", "cuda/kern.cuh", "test_norm", "tsan", "tsan",
     r"(s\[threadIdx\.x / 32\] = v;\n)    __syncthreads\(\);", r"\1", True, "cuda/norm.cu"),
    ("missing fence on a flag: split-K", "cuda/gemm_quant.cu", "test_gemm", "tsan", "tsan",
     r"    __threadfence\(\);\n    __syncthreads\(\);", r"    __syncthreads();", True, None),
    ("wrong fragment index: columns of the result", "cuda/gemm_quant.cu", "test_gemm", "release", "value",
     r"t \* 8 \+ lane % 4 \* 2", r"t * 8 + lane / 8 * 2", True, None),
    ("cp.async read before its wait", "cuda/gemm_quant.cu", "test_gemm", "release", "value",
     r"cp_async_wait<STAGES - 2>", r"cp_async_wait<STAGES - 1>", True, None),
    ("out-of-bounds shared access", "cuda/rope_kv.cu", "test_rope_kv", "asan", "asan",
     r"SHARED\(float, head, \[WARPS\]\[HEAD_DIM_MAX\]\)", r"SHARED(float, head, [WARPS - 1][HEAD_DIM_MAX])", True, None),
    ("plain reset of an atomic", "cuda/gemm_quant.cu", "test_gemm", "tsan", "tsan",
     r"atomicExch\(counter, 0\);", r"*counter = 0;", True, None),
    ("no swizzle where it is read", "cuda/gemm_quant.cu", "test_gemm", "release", "value",
     r"\(\(chunk \^ \(r & 7\)\) << 3\)", r"(chunk << 3)", False, None),
    ("scale of the wrong group", "cuda/gemm.cuh", "test_gemm", "release", "value",
     r"F::GROUP == 32 \? c : c \* 2 \+ ks", r"F::GROUP == 32 ? 0 : c * 2 + ks", False, "cuda/gemm_quant.cu"),
    ("rows beyond the count are stored", "cuda/gemm_quant.cu", "test_gemm", "asan", "asan",
     r"r >= n \|\| col >= a\.n_out", r"col >= a.n_out", False, None),
    ("counter is not reset", "cuda/gemm_quant.cu", "test_gemm", "release", "value",
     r"atomicExch\(counter, 0\);", r";", False, None),
    ("rotation of the wrong pair", "cuda/rope_kv.cu", "test_rope_kv", "release", "value",
     r"a\.n_rot / 2 \+ i;", r"a.head_dim / 2 + i;", False, None),
    ("no barrier in a warp between norm and rotation", "cuda/rope_kv.cu", "test_rope_kv", "tsan", "tsan",
     r"x\[i\] = __fmul_rn\(__fmul_rn\(x\[i\], inv\), w\[i\]\);\n        __syncwarp\(\);",
     r"x[i] = __fmul_rn(__fmul_rn(x[i], inv), w[i]);", False, None),
    ("a tie goes to the higher id", "cuda/sample.cuh", "test_sample", "release", "value",
     r"x == b->x && id < b->id", r"x == b->x && id > b->id", False, "cuda/sample.cu"),
    ("a barrier in divergent code", "cuda/kern.cuh", "test_norm", "release", "emu",
     r"    __syncthreads\(\);\n    if \(threadIdx\.x % 32 == 0\)", r"    if (threadIdx.x < 64)\n        __syncthreads();\n    if (threadIdx.x % 32 == 0)",
     False, "cuda/norm.cu"),
    ("a shuffle in divergent code", "cuda/kern.cuh", "test_norm", "release", "emu",
     r"v = __fadd_rn\(v, __shfl_xor_sync\(0xffffffffu, v, o\)\);", r"if (threadIdx.x % 2 == 0)\n            v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, o));",
     False, "cuda/norm.cu"),
    ("a store past the row", "cuda/act.cu", "test_act", "asan", "asan",
     r"if \(k \+ 3 < n\)\n        x\[k \+ 3\] = v\.w;", r"x[k + 3] = v.w;", False, None),
    ("missing barrier: factors of a group", "cuda/image_norm.cu", "test_image", "tsan", "tsan",
     r"(red\[FACTOR_THREADS \+ t\] = sq;\n)    __syncthreads\(\);", r"\1", True, None),
    ("no zeros behind narrow heads", "cuda/image_attend.cu", "test_image", "release", "value",
     r"if \(\(int\)k < a\.from\)\n", r"", True, None),
    ("missing barrier: greatest score of a row", "cuda/image_attend.cu", "test_image", "tsan", "tsan",
     r"(red\[t / 32\] = top;\n)    __syncthreads\(\);", r"\1", False, None),
    ("no barrier in a warp between norm and rotation of an image's heads", "cuda/image_rows.cu", "test_image", "tsan", "tsan",
     r"    __syncwarp\(\);\n", r"", False, None),
    ("scores do not fit shared memory", "cuda/image_attend.cu", "test_image", "asan", "asan",
     r"c\.smem = \(size_t\)a->bias_cols \*", r"c.smem = (size_t)a->bias_cols / 2 *", False, None),
    ("a row of the next segment", "cuda/kern.cuh", "test_image", "release", "value",
     r"row < start\[mid \+ 1\]", r"row <= start[mid + 1]", False, "cuda/image_rows.cu"),
    ("a window one row down", "cuda/image_conv.cu", "test_image", "release", "value",
     r"y0 = r / out_w \* a\.stride - a\.pad", r"y0 = r / out_w * a.stride - a.pad + 1", False, None),
    ("padding on one side only", "cuda/image_conv.cu", "test_image", "asan", "asan",
     r"y < h && x < w\)", r"y <= h && x < w)", False, None),
    ("sums run into the next segment", "cuda/image_norm.cu", "test_image", "release", "value",
     r"min\(\(int64_t\)CU_CHUNK_ROWS, start\[s \+ 1\] - from\)", r"min((int64_t)CU_CHUNK_ROWS, start[n_seg] - from)", False, None),
    ("channels of a group that are left out", "cuda/image_norm.cu", "test_image", "release", "value",
     r"ch < per && t < wide \* deep; ch \+= wide", r"ch < wide; ch += wide", False, None),
    ("a vector where rows are not aligned", "cuda/image.cuh", "test_image", "asan", "asan",
     r"ok = ok && \(!m->p \|\| mat_vec4\(m\)\);", r"ok = ok && (!m->p || m->p);", False, "cuda/image_rows.cu"),
    ("a product's residual of another chunk", "cuda/kern.cuh", "test_image", "release", "value",
     r"a\.n_seg, a\.row \+ r\)", r"a.n_seg, r)", False, "cuda/gemm_f32.cu"),
    ("a causal row sees one more", "cuda/image_attend.cu", "test_image", "release", "value",
     r"a\.causal \? at \+ 1 :", r"a.causal ? at + 2 :", False, None),
    ("a block of keys too far", "cuda/image_attend.cu", "test_image", "release", "value",
     r"a\.block\[s\] \+ at / CU_BLOCK_TOKENS", r"a.block[s] + (at + 1) / CU_BLOCK_TOKENS", False, None),
]


def run(cmd, **kw):
    return subprocess.run(cmd, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)


def objects(variant, test):
    """Builds the right program of the variant and gives its objects."""
    out = run(["make", "-s", "VARIANT=" + variant, f"build/{variant}/tests/cuda/{test}"])
    if out.returncode:
        raise RuntimeError(out.stdout)
    base = f"build/{variant}/cuda-emu"
    found = [f"{base}/tests/cuda/{test}.cu.o"]
    for folder in ("cuda", "engine/base", "engine/quant", "engine", "engine/ref", "tests/cuda"):
        path = os.path.join(TOP, base, folder)
        if os.path.isdir(path):
            found += [f"{base}/{folder}/{f}" for f in sorted(os.listdir(path))
                      if f.endswith(".o") and not f.startswith("test_")]
    return found


class Mutants(unittest.TestCase):
    def plant(self, name, path, test, variant, by, pattern, to, _short, unit):
        with open(os.path.join(TOP, path), encoding="utf-8") as f:
            text = f.read()
        bad, n = re.subn(pattern, to, text, count=1)
        self.assertEqual(n, 1, f"{name}: the mutation does not apply to {path} any more")
        unit = unit or path
        with tempfile.TemporaryDirectory() as tmp:
            os.makedirs(os.path.join(tmp, "cuda"))
            with open(os.path.join(tmp, path), "w", encoding="utf-8") as f:
                f.write(bad)
            if unit != path:
                with open(os.path.join(TOP, unit), encoding="utf-8") as f, open(os.path.join(tmp, unit), "w", encoding="utf-8") as g:
                    g.write(f.read())
            obj, prog = os.path.join(tmp, "m.o"), os.path.join(tmp, "prog")
            cmd = ["g++", "-x", "c++", "-std=c++17", "-D_GNU_SOURCE", "-DCUDA_EMU", "-I" + tmp, "-I.", "-w", "-g", "-ffp-contract=off"]
            out = run(cmd + FLAGS[variant] + ["-c", os.path.join(tmp, unit), "-o", obj])
            self.assertEqual(out.returncode, 0, out.stdout)
            objs = [obj if o.endswith("/" + unit + ".o") else o for o in objects(variant, test)]
            self.assertIn(obj, objs)
            out = run(["g++"] + FLAGS[variant][1:2] * (variant != "release") + objs + ["-o", prog, "-ldl", "-lpthread", "-lm"])
            self.assertEqual(out.returncode, 0, out.stdout)
            env = dict(os.environ, CUDA_TEST_SHORT="1", TSAN_OPTIONS="exitcode=66:halt_on_error=1", ASAN_OPTIONS="detect_leaks=0")
            try:
                out = run([prog], env=env, timeout=120)
            except subprocess.TimeoutExpired as e:
                out = subprocess.CompletedProcess([], 1, str(e.stdout))
        self.assertNotEqual(out.returncode, 0, f"{name}: nothing saw it")
        self.assertRegex(out.stdout, re.compile(SEEN[by], re.M), f"{name}: not seen by {by}")


def add(row):
    slug = re.sub(r"\W+", "_", row[0])
    setattr(Mutants, "test_" + slug, lambda self: self.plant(*row))


ALL = "--all" in sys.argv or os.environ.get("MUTANTS") == "all"
sys.argv = [a for a in sys.argv if a != "--all"]
for mutant in MUTANTS:
    if ALL or mutant[7]:
        add(mutant)

if __name__ == "__main__":
    unittest.main()
