#!/usr/bin/env python3
"""Side by side in one run on the same weights: stepd and the servers that people would run instead (docs/benchmarks.md).

    compare.py [--quick | --full] [--model FILE|NAME] [--only KIND,...] [--rounds N] [--realtime N]

All servers of a group of loads are started first (start-up time and memory are measured then) and held still by SIGSTOP but for the
one that is measured. Each cell is run at every server in turn, the order rotates from round to round; medians and ratios against
the best peer of each line. Prints a table, keeps it with every single figure in tests/bench/history/DATE-COMMIT.json."""
import argparse
import configparser
import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

BENCH = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(BENCH))
sys.path[:0] = [BENCH, os.path.join(TOP, "tests")]
import hostpath  # noqa: E402
import machine  # noqa: E402
import recipes  # noqa: E402
import report  # noqa: E402
from daemon import free_port  # noqa: E402
from peers import KINDS, base  # noqa: E402


def say(text):
    print(text, flush=True)


class Lock:
    """One measured load at a time on this machine, if a lock file is named: --lock FILE."""

    def __init__(self, path):
        self.f = open(path, "a") if path else None

    def __enter__(self):
        if self.f:
            fcntl.flock(self.f, fcntl.LOCK_EX)

    def __exit__(self, *_):
        if self.f:
            fcntl.flock(self.f, fcntl.LOCK_UN)


class Run:
    def __init__(self, a):
        self.a, self.lock = a, Lock(a.lock)
        self.absent, self.starts, self.settings, self.rounds = {}, {}, {}, {}
        self.kinds, self.cells, self.kept, self.seed = [], [], {}, 0
        for name, kind in KINDS.items():
            why = kind.missing() if name in a.only else "left out by --only"
            if name in a.only and not why:
                try:
                    kind.prepare(a.model)
                except (base.Failed, subprocess.TimeoutExpired) as e:
                    why = str(e)
            if why:
                self.absent[name] = why
                say(f"{name}: {why}")
            else:
                self.kinds.append(name)

    def start(self, cells):
        """The group's servers; one that fails is reported and not asked again. One that takes minutes to start stays for all groups."""
        out = {}
        for name in list(self.kinds):
            if name in self.kept:
                out[name] = self.kept[name]
                continue
            room = self.cells if KINDS[name].keep else cells
            slots, tokens = max(c.streams for c in room), max(c.need() for c in room)
            try:
                # One that needs minutes does not keep others from measuring.
                with Lock(None) if KINDS[name].keep else self.lock:
                    s = KINDS[name](base.Job(self.a.model, slots, tokens, free_port(), self.a.realtime))
                self.starts.setdefault(name, {"start_s": s.start_s, "memory_mb": s.memory_mb()})
                self.settings.setdefault(name, s.settings)
                s.hold()
                out[name] = s
                if KINDS[name].keep:
                    self.kept[name] = s
                say(f"{name}: first token after {s.start_s:.2f} s, {s.memory_mb():.0f} MB")
            except base.Failed as e:
                self.absent[name] = str(e)
                self.kinds.remove(name)
                say(f"{name}: {e}")
        return out

    def cell(self, c, servers, turn):
        names = [n for n in servers if n not in c.without]
        with self.lock:
            self.turn(c, servers, turn, names)

    def turn(self, c, servers, turn, names):
        for k in range(len(names)):
            n = names[(turn + k) % len(names)]
            servers[n].go()
            f = recipes.run(c, servers[n], self.seed, self.a.realtime)
            if f.get("cut"):
                servers[n].settle()
            servers[n].hold()
            self.rounds.setdefault(c.key(), {}).setdefault(n, []).append(f)
            say(f"round {turn + 1}: {c.key()}: {n}: " + (f.get("error") or ", ".join(
                f"{title} {report.form(f[key])}" for key, title, _ in report.LINES if f.get(key))))

    def group(self, name, cells):
        say(f"== {name}: starting {len(self.kinds)} servers")
        servers = self.start(cells)
        try:
            for turn in range(max(c.rounds for c in cells)):
                for c in cells:
                    if turn < c.rounds and servers:
                        self.seed += 1  # no server, not even one that stays for all groups, has seen a prompt before
                        self.cell(c, servers, turn)
        finally:
            for n, s in servers.items():
                if n not in self.kept:
                    s.stop()

    def all(self, groups):
        self.cells = [c for _, cells in groups for c in cells]
        try:
            for name, cells in groups:
                self.group(name, cells)
        finally:
            for s in self.kept.values():
                s.stop()

    def results(self):
        return {cell: {k: report.medians(r) for k, r in by.items()} for cell, by in self.rounds.items()}


def model_file(name):
    """A file, or the file of a name in the catalogue, which is fetched where it is missing."""
    ini = configparser.ConfigParser(comment_prefixes=(";",))
    ini.read(os.path.join(TOP, "conf", "models.ini"))
    if name not in ini:
        return name
    path = os.path.join(os.environ.get("STEPD_MODELS", os.path.join(TOP, "models")), ini[name]["file"])
    if not os.path.exists(path):
        subprocess.run([os.path.join(TOP, "build", "release", "stepd"), "pull", name], check=True)
    return path


def options():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--quick", action="store_const", dest="size", const="quick", default="default", help="a few minutes")
    ap.add_argument("--full", action="store_const", dest="size", const="full", help="hours: long limits, five rounds of everything")
    ap.add_argument("--model", type=model_file, default="smollm2-135m", help="a GGUF file, or a name of the catalogue")
    ap.add_argument("--only", type=lambda s: s.split(","), default=list(KINDS), help="of: " + ", ".join(KINDS))
    ap.add_argument("--rounds", type=int, help="so many rounds of each cell")
    ap.add_argument("--streams", type=lambda s: [int(x) for x in s.split(",")], help="only these numbers of streams")
    ap.add_argument("--groups", type=lambda s: s.split(","), help="only these groups of loads")
    ap.add_argument("--realtime", type=int, default=0, help="servers run at this SCHED_RR priority, the load generator one above")
    ap.add_argument("--lock", help="a file that is locked during each measured load")
    ap.add_argument("--host", choices=("yes", "no", "only"), default="yes", help="costs of the server without a model")
    ap.add_argument("--note", default="", help="kept with the result")
    a = ap.parse_args()
    unknown = [k for k in a.only if k not in KINDS]
    if unknown:
        ap.error(f"unknown kinds: {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    return a


def groups(a):
    for name, cells in recipes.plan(a.size):
        if a.groups and name not in a.groups:
            continue
        cells = [c for c in cells if not a.streams or c.streams in a.streams]
        for c in cells:
            c.rounds = a.rounds or c.rounds
        if cells:
            yield name, cells


def main():
    for s in (signal.SIGINT, signal.SIGTERM):  # a run in the background of a script has SIGINT ignored
        signal.signal(s, signal.default_int_handler)
    a = options()
    run = Run(a)
    with run.lock:
        where = machine.describe(a.realtime)
    say(machine.text(where))
    if a.host != "only":
        try:
            run.all(list(groups(a)))
        except KeyboardInterrupt:
            say("stopped: what was measured so far is kept")
            a.host, a.note = "no", a.note + " (stopped early)"
    results = run.results()
    host = {}
    if a.host == "only" or (a.host == "yes" and a.size != "quick"):
        with run.lock:
            host = hostpath.measure(a.model, a.realtime)
    text = report.table(results, run.starts, run.kinds) + "\n\n" + report.notes(results, run.absent, run.settings)
    lines = report.roofline(results, where, machine.model_bytes(a.model))
    text = "\n\n".join([t for t in (text, "\n".join(lines), hostpath.table(host) if host else "") if t])
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, stdout=subprocess.PIPE, text=True, check=False)
    now = datetime.datetime.now(datetime.timezone.utc)
    where.update(date=now.strftime("%Y-%m-%dT%H:%MZ"), commit=git.stdout.strip() or "unknown", model=os.path.basename(a.model),
                 realtime=a.realtime, size=a.size, note=a.note)
    say(f"\n{where['model']}, commit {where['commit']}\n\n{text}")
    folder = os.path.join(BENCH, "history")
    os.makedirs(folder, exist_ok=True)
    stem = os.path.splitext(where["model"])[0]
    name = f"{now.strftime('%Y-%m-%d')}-{where['commit']}-{stem}{'-quick' if a.size == 'quick' else ''}"
    path, again = os.path.join(folder, f"{name}.json"), 1
    while os.path.exists(path):  # an earlier run stays
        again += 1
        path = os.path.join(folder, f"{name}-{again}.json")
    with open(path, "w") as f:
        json.dump(dict(where, absent=run.absent, starts=run.starts, settings=run.settings, results=results, rounds=run.rounds, host=host,
                       table=text), f, indent=1)
        f.write("\n")
    say(f"\nkept in {os.path.relpath(path, TOP)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
