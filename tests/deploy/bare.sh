#!/bin/sh
# bare.sh [run|test|user ...]: does a bare machine get to a running server with the README's two commands?
#   run   as root, with nothing but git and make: `make run`, a chat from outside, and `make run` again (nothing to do: < 3 s)
#   user  the same as a normal user with sudo
#   test  as root: `make test`
# Default: run user. The machine is a minimal Debian 12 in build/deploy (chroot in its own mount and process namespaces,
# so that mounts and processes end with this script); the sources are a clone of HEAD. Needs root, debootstrap, network.
set -eu
cd "$(dirname "$0")/../.."
top=$PWD
if [ "${BARE_INSIDE:-}" != 1 ]; then
    mkdir -p build/deploy
    "$top/tests/deploy/base.sh" build/deploy/base
    git bundle create -q build/deploy/stepd.bundle HEAD
    BARE_INSIDE=1 exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

root=$top/build/deploy/bare
port=18437
[ $# -gt 0 ] || set -- run user

say() { printf 'bare: %s\n' "$*"; }
now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{printf "%.1f", $1 - $2}'; }

mounts() {
    mount -t proc proc "$root/proc"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    mount -t tmpfs tmpfs "$root/dev/shm"
}

# A fresh machine: mounts only inside this namespace, and never below a folder that is being deleted.
machine() {
    for m in proc dev/pts dev/shm; do umount "$root/$m" 2>/dev/null || true; done
    grep -q " $root/" /proc/self/mounts && { say "something is still mounted below $root"; exit 1; }
    rm -rf --one-file-system "$root"
    cp -a build/deploy/base "$root"
    mounts
    cp build/deploy/stepd.bundle "$root/stepd.bundle"
    inside root "apt-get update -qq && apt-get install -qq -y --no-install-recommends git make $1" >build/deploy/bare.apt.log 2>&1 ||
        { tail -20 build/deploy/bare.apt.log; exit 1; }
}

# inside USER COMMAND: with a fresh environment; only proxies and certificates of this machine are carried over.
inside() {
    carried=$(env | sed -n 's/^\([A-Za-z_]*\(_proxy\|_PROXY\|CA_BUNDLE\|CERT_FILE\|CERT_DIR\|_CERT\|CA_CERTS\)\)=.*/\1/p')
    set -- "$1" "$2" HOME="$([ "$1" = root ] && echo /root || echo "/home/$1")"
    for v in $carried; do eval "set -- \"\$@\" $v=\"\$$v\""; done
    user=$1 cmd=$2
    shift 2
    chroot --userspec="$user" "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        USER="$user" LANG=C.UTF-8 "$@" sh -c "cd && $cmd"
}

# served USER LIMIT: `make run`, wait for the first answer, stop. Fails when it takes longer than LIMIT seconds.
served() {
    start=$(now)
    inside "$1" "cd stepd && exec make run ARGS='--port $port'" >"build/deploy/bare.$1.log" 2>&1 &
    make_pid=$!
    until curl -sf -m 2 "http://127.0.0.1:$port/ready" >/dev/null; do
        kill -0 $make_pid 2>/dev/null || { tail -40 "build/deploy/bare.$1.log"; say "make run ended by itself"; exit 1; }
        sleep 0.05
    done
    took=$(since "$start")
    say "make run as $1: serving after $took s"
    answer=$(curl -sf -m 60 "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"model":"smollm2-135m","max_tokens":12,"temperature":0,"messages":[{"role":"user","content":"What is the capital of France?"}]}')
    case "$answer" in *'"finish_reason"'*) say "it answers: $answer" ;; *) say "no answer: $answer"; exit 1 ;; esac
    pkill -TERM -x stepd || true # only this namespace's processes are to be seen
    wait $make_pid || { tail -20 "build/deploy/bare.$1.log"; say "make run did not end well"; exit 1; }
    echo "$took $2" | awk '{exit !($1 < $2)}' || { say "that is longer than $2 s"; exit 1; }
}

both() {
    inside "$1" "git -c advice.detachedHead=false clone -q /stepd.bundle stepd"
    served "$1" 3600
    touch "$root/mark"
    served "$1" 3
    again=$(find "$root" -xdev -newer "$root/mark" -type f -path '*/stepd/*' ! -path '*/.git/*' ! -name '*.log' | head -5)
    [ -z "$again" ] || { say "the second make run made again: $again"; exit 1; }
}

for part in "$@"; do
    case "$part" in
    run) machine ""; both root ;;
    user)
        machine sudo
        inside root "useradd -m -s /bin/sh dev && echo 'dev ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/dev"
        both dev
        ;;
    test)
        [ -d "$root/root/stepd" ] || { machine ""; inside root "git -c advice.detachedHead=false clone -q /stepd.bundle stepd"; }
        [ -e "$root/proc/self" ] || mounts
        start=$(now)
        inside root "cd stepd && make test" >build/deploy/bare.test.log 2>&1 || { tail -60 build/deploy/bare.test.log; say "make test failed"; exit 1; }
        tail -1 build/deploy/bare.test.log
        say "make test: $(since "$start") s"
        ;;
    *) say "unknown part $part"; exit 2 ;;
    esac
done
say "all done"
