#!/usr/bin/env python3
"""confine.py UNIT PROGRAM ARG...: run a program under the system call filter that systemd would make of UNIT.

Reads SystemCallFilter=, SystemCallErrorNumber= and MemoryDenyWriteExecute= of the unit file and installs the same seccomp
program, so that the unit's confinement can be tested where systemd does not run as init. x86-64."""
import ctypes
import os
import re
import struct
import subprocess
import sys

ALLOW, EPERM = 0x7fff0000, 0x00050001
LD, JEQ, JGE, JSET, AND, RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NR, ARCH, ARG2 = 0, 4, 32  # offsets in struct seccomp_data; ARG2: low half of the third argument
X86_64, X32_BIT = 0xc000003e, 0x40000000
PROT_WRITE, PROT_EXEC = 2, 4


def numbers():
    with open("/usr/include/x86_64-linux-gnu/asm/unistd_64.h") as f:
        return {m.group(1): int(m.group(2)) for m in re.finditer(r"#define __NR_(\w+) (\d+)", f.read())}


def group(name, seen=()):
    """System call names of @group, or the call itself."""
    if not name.startswith("@"):
        return {name}
    out = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, stdout=subprocess.PIPE, text=True).stdout
    calls = set()
    for word in (line.strip() for line in out.splitlines()[1:]):
        if word and not word.startswith("#"):
            calls |= group(word, seen + (name,)) if word not in seen else set()
    return calls


def allowed(unit):
    """(allowed calls, deny write+execute?) as the directives say, in their order: the first one makes an allow list."""
    calls, mdwe = set(), False
    with open(unit) as f:
        for line in f:
            key, _, value = line.strip().partition("=")
            if key == "SystemCallFilter":
                names = set().union(*(group(w) for w in value.lstrip("~").split()))
                calls = calls - names if value.startswith("~") else calls | names
            elif key == "MemoryDenyWriteExecute":
                mdwe = value == "yes"
    # What systemd always lets through, for it needs these to start a program.
    return calls | group("@default") | {"execve", "exit", "exit_group", "rt_sigreturn"}, mdwe


def program(unit):
    nr = numbers()
    calls, mdwe = allowed(unit)
    out = [(LD, 0, 0, ARCH), (JEQ, 1, 0, X86_64), (RET, 0, 0, EPERM), (LD, 0, 0, NR), (JGE, 0, 1, X32_BIT), (RET, 0, 0, EPERM)]
    if mdwe:
        both = PROT_WRITE | PROT_EXEC
        out += [(JEQ, 0, 5, nr["mmap"]), (LD, 0, 0, ARG2), (AND, 0, 0, both), (JEQ, 0, 1, both), (RET, 0, 0, EPERM),
                (LD, 0, 0, NR)]
        for name in ("mprotect", "pkey_mprotect"):
            out += [(JEQ, 0, 4, nr[name]), (LD, 0, 0, ARG2), (JSET, 0, 1, PROT_EXEC), (RET, 0, 0, EPERM), (LD, 0, 0, NR)]
    for n in sorted(nr[c] for c in calls if c in nr):
        out += [(JEQ, 0, 1, n), (RET, 0, 0, ALLOW)]
    out.append((RET, 0, 0, EPERM))
    return b"".join(struct.pack("HBBI", *i) for i in out), len(out)


def main():
    code, n = program(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    keep = ctypes.create_string_buffer(code, len(code))
    prog = struct.pack("HxxxxxxP", n, ctypes.addressof(keep))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(prog), 0, 0):  # NO_NEW_PRIVS, SECCOMP filter
        raise OSError(ctypes.get_errno(), "seccomp")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
