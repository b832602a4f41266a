#!/usr/bin/env python3
"""Runs test programs and test scripts, prints one line each and a closing count.

    tests/run.py [--only TEXT] [--parallel TEST ...] [--serial TEST ...]

A TEST is build/VARIANT/tests/GROUP/test_NAME, or tests/GROUP/test_NAME.py, or VARIANT=tests/GROUP/test_NAME.py to run the
script against that variant's daemon. --parallel: two at a time; --serial: one after another, for what measures time or
loads both cores.
A C test is a cmocka program, a script a Python file; both say how many checks they made ("N test(s)." or "Ran N
tests", "N passed, N failed, N skipped"). Exit status 77 of a program means that it could not run here: its
reason is shown and counted. The output of a failing test is printed whole. Exit 1 when anything failed or
nothing ran."""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def counts(text, rc):
    """(passed, failed, skipped) that the output speaks of, at least one in all."""
    p = sum(int(m) for m in re.findall(r"\[  PASSED  \] (\d+) test", text))
    f = sum(int(m) for m in re.findall(r"\[  FAILED  \] (\d+) test", text))
    s = sum(int(m) for m in re.findall(r"\[  SKIPPED \] (\d+) test", text))
    for m in re.finditer(r"^Ran (\d+) tests? in", text, re.M):
        p += int(m.group(1))
    for m in re.finditer(r"^(?:OK|FAILED) \((.*)\)$", text, re.M):
        for what, n in re.findall(r"(failures|errors|skipped)=(\d+)", m.group(1)):
            p -= int(n)
            if what == "skipped":
                s += int(n)
            else:
                f += int(n)
    for m in re.finditer(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", text, re.M):
        p, f, s = p + int(m.group(1)), f + int(m.group(2)), s + int(m.group(3) or 0)
    if rc == 77:
        return p, f, max(s, 1)
    if rc != 0:
        return p, max(f, 1), s
    return (p, f, s) if p + f + s else (1, 0, 0)


def environment(variant):
    supp = os.path.join(TOP, "tests", "tsan.supp")
    return dict(os.environ, STEPD=os.path.join(TOP, "build", variant, "stepd"), VARIANT=variant,
                STEPD_LIBDIR=os.path.join(TOP, "build", variant),
                ASAN_OPTIONS="detect_leaks=1:exitcode=99:allocator_may_return_null=1",
                UBSAN_OPTIONS="print_stacktrace=1",
                TSAN_OPTIONS="exitcode=66" + (":suppressions=" + supp if os.path.exists(supp) else ""))


def run_one(test, timeout):
    variant, _, path = test.rpartition("=")
    m = re.match(r"build/(\w+)/", path)
    variant = m.group(1) if m else variant or "release"
    cmd = [path]
    if path.endswith(".py"):
        python = os.path.join(TOP, ".venv", "bin", "python")
        cmd = [python if os.path.exists(python) else sys.executable, path]
    start = time.monotonic()
    try:
        r = subprocess.run(cmd, cwd=TOP, env=environment(variant), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=timeout)
        rc, out = r.returncode, r.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as e:
        rc, out = 124, (e.stdout or b"").decode("utf-8", "replace") + f"\nstopped after {timeout} s\n"
    return test, rc, out, time.monotonic() - start


def report(test, rc, out, secs, total):
    c = counts(out, rc)
    for i in range(3):
        total[i] += c[i]
    word = "FAIL" if c[1] or rc not in (0, 77) else "SKIP" if rc == 77 else "ok"
    print(f"{word:4} {test:52} {c[0]:5} passed {secs:7.1f} s", flush=True)
    if word == "FAIL":
        print(out[-20000:], flush=True)
    elif c[2]:
        for line in out.splitlines():
            if re.search(r"\bskip", line, re.I):
                print("     " + line.strip(), flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default="")
    ap.add_argument("--timeout", type=float, default=900)
    ap.add_argument("--parallel", nargs="*", default=[])
    ap.add_argument("--serial", nargs="*", default=[])
    a = ap.parse_args()
    total = [0, 0, 0]
    for tests, jobs in ((a.parallel, 2), (a.serial, 1)):
        tests = [t for t in tests if a.only in t]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            runs = [pool.submit(run_one, t, a.timeout) for t in tests]
            for done in concurrent.futures.as_completed(runs):
                report(*done.result(), total)
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
