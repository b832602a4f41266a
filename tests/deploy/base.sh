#!/bin/sh
# base.sh FOLDER: a minimal Debian 12 in FOLDER, as an installer leaves it, made once. Needs root and debootstrap.
# What this machine needs to reach the network is carried over: package sources, apt and pip settings, own
# certificates, name look-up. Nothing else of it is.
set -eu
root=$1
[ -e "$root/.complete" ] && exit 0
[ "$(id -u)" = 0 ] || { echo "base.sh: needs root" >&2; exit 77; }
command -v debootstrap >/dev/null || { echo "base.sh: debootstrap is not installed" >&2; exit 77; }
rm -rf --one-file-system "$root.part"
mkdir -p "$root.part"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -n 's/^URIs: *\([^ ]*\/debian\/\{0,1\}\) *$/\1/p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\/debian\/\{0,1\}\) .*/\2/p' | head -1)
log="$root.log"
debootstrap --variant=minbase bookworm "$root.part" ${mirror:+"$mirror"} >"$log" 2>&1 ||
    { tail -20 "$log" >&2; echo "base.sh: debootstrap failed; the whole log is $log" >&2; exit 1; }
for f in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/pip.conf /etc/xdg/pip /etc/resolv.conf \
    /etc/hosts /usr/local/share/ca-certificates; do
    [ -e "$f" ] || continue
    mkdir -p "$root.part$(dirname "$f")"
    rm -rf "$root.part$f"
    cp -rL "$f" "$root.part$f"
done
rm -rf "$root.part"/var/cache/apt/archives/*.deb
# Of apt's settings only how to fetch; of its sources only Debian's, whose signing keys are there.
grep -L '^ *Acquire' "$root.part"/etc/apt/apt.conf.d/* | xargs -r rm -f
grep -sL debian "$root.part"/etc/apt/sources.list.d/* | xargs -r rm -f
touch "$root.part/.complete"
mv "$root.part" "$root"
