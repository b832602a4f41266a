#!/bin/sh
# rootfs.sh BINARY FOLDER: copy what BINARY needs to run into FOLDER: shared libraries, loader, certificates, an
# unprivileged user. So the image holds nothing that can be run but the daemon.
set -eu
bin=$1 root=$2
mkdir -p "$root/etc/ssl/certs" "$root/tmp"
chmod 1777 "$root/tmp"
ldd "$bin" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/lib[^ ]*ld-linux[^ ]*\).*/\1/p' | sort -u | while read -r lib; do
    mkdir -p "$root$(dirname "$lib")"
    cp -L "$lib" "$root$lib"
done
# Name look-up is loaded at run time, not linked.
for lib in /lib/x86_64-linux-gnu/libnss_files.so.2 /lib/x86_64-linux-gnu/libnss_dns.so.2; do
    [ ! -e "$lib" ] || { mkdir -p "$root$(dirname "$lib")"; cp -L "$lib" "$root$lib"; }
done
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0::/:/none\nstepd:x:65532:65532::/models:/none\n' > "$root/etc/passwd"
printf 'root:x:0:\nstepd:x:65532:\n' > "$root/etc/group"
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"
