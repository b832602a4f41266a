#!/bin/bash
# Everything that only a GPU can show, in at most ten minutes: kernel tests on the device, op and model tests with its
# plug-in, compute-sanitizer, speed of kernels and of whole models of random weights.
#
#     tests/device.sh          one NVIDIA GPU and nvcc; nothing is downloaded
#     tests/device.sh --emu    the same steps against the emulation, with tiny shapes
#
# Results are JSON lines in tests/bench/history/device-GPU-COMMIT.jsonl (--emu: a temporary file), and in $OUT if that is
# set. Exit status 1 when anything failed, 2 when the machine cannot run it. DEVICE_SECONDS (580) is the time for all;
# what no longer fits is reported as not run and counts as a failure.
set -u
cd "$(dirname "$0")/.." || exit 2
emu=
case "${1-}" in
--emu) emu=1 ;;
'') ;;
*) sed -n '2,10s/^# \?//p' "$0"; exit 2 ;;
esac
end=$((SECONDS + ${DEVICE_SECONDS:-580}))
jobs=$(nproc)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo "${COMMIT:-unknown}")
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
failed=0

note() { printf '== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; failed=1; }
# step SECONDS NAME COMMAND...: with a limit of its own, within what is left of all
step() {
    local limit=$1 name=$2 left=$((end - SECONDS)) rc
    shift 2
    [ $left -gt 5 ] || { fail "$name: not run, the time is used up"; return 1; }
    [ "$limit" -lt $left ] || limit=$left
    timeout -k 5 "$limit" "$@"
    rc=$?
    [ $rc -eq 0 ] || fail "$name (exit status $rc$([ $rc -eq 124 ] && echo ": over $limit s"))"
    return $rc
}
# The same; lines of JSON go into the results too.
measured() {
    local rc
    step "$@" > "$tmp/lines"
    rc=$?
    cat "$tmp/lines"
    grep '^{' "$tmp/lines" >> "$out"
    return $rc
}
objects() { make -s ${arch:+ARCHS=$arch} --eval 'objects-of-device:; @echo $('"$1"')' objects-of-device; }

if [ $emu ]; then
    gpu=emulation device=cuda-emu dir=build/release/cuda-emu out=$tmp/results.jsonl arch=
    unset OUT
else
    nvcc=$(make -s --eval 'nvcc-of-device:; @echo $(NVCC)' nvcc-of-device)
    [ -n "$nvcc" ] || { echo 'tests/device.sh: no nvcc in $CUDA_HOME, PATH or .cuda; --emu needs none'; exit 2; }
    query=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | head -1)
    case "$query" in
    *,\ [0-9]*.[0-9]*) ;;
    *) echo 'tests/device.sh: nvidia-smi finds no GPU; --emu needs none'; exit 2 ;;
    esac
    gpu=${query%,*} arch=${query##*, }
    arch=${arch/./}
    [ "$arch" != 90 ] || arch=90a # wgmma
    device=cuda dir=build/cuda
    out=tests/bench/history/device-$(echo "$gpu" | tr -cs 'A-Za-z0-9\n' -)-$commit.jsonl
fi
tag="\"gpu\": \"$gpu\", \"commit\": \"$commit\""
note "$gpu${arch:+, sm_$arch}, commit $commit, results in $out"

note 'build'
names=$(cd tests/cuda && ls test_*.cu bench_kernels.cu | sed 's/\.cu$//')
[ $emu ] && names='test_ptx test_norm test_rope_kv test_image bench_kernels'
extra=$(ls engine/ref/*.c tests/cuda/*.c | sed "s#\(.*\)\.c#$dir/\1.o#")
lib=$([ $emu ] && objects EMU_O || objects NV_O)
programs="build/release/tests/models/test_tiny build/release/tests/bench/bench_model build/release/tests/bench/bench_image"
[ $emu ] || programs="$programs build/release/tests/models/test_image_cuda $(ls tests/ops/test_*.c | sed 's#\(.*\)\.c#build/release/\1#')"
plugin=build/release/stepd-$device.so
step 240 'build' make -s -j"$jobs" ${arch:+ARCHS=$arch} $plugin $lib $extra $(printf "$dir/tests/cuda/%s.cu.o " $names) $programs || exit 1
for n in $names; do
    mkdir -p "$tmp/bin"
    if [ $emu ]; then
        step 60 "link $n" g++ -o "$tmp/bin/$n" $dir/tests/cuda/$n.cu.o $lib $extra -ldl -lpthread -lm
    else
        step 60 "link $n" "$nvcc" -arch=sm_$arch -cudart static -o "$tmp/bin/$n" $dir/tests/cuda/$n.cu.o $lib $extra -ldl -lpthread -lm
    fi
done

note 'kernels: the device against the reference; test_ptx compares the instructions themselves'
for n in test_ptx $(echo "$names" | tr ' ' '\n' | grep '^test_' | grep -v '^test_ptx$'); do
    note "$n"
    if step 60 "$n" "$tmp/bin/$n" ${emu:+--order fwd}; then rc=true; else rc=false; fi
    echo "{\"test\": \"$n\", \"passed\": $rc, $tag}" >> "$out"
done

note 'ops and models with the plug-in'
export STEPD_LIBDIR=$PWD/build/release
[ $emu ] || export IMAGE_DEVICE=$device
for p in $programs; do
    case $p in */test_*) step 60 "$p" "$p" > "$tmp/log" 2>&1 || tail -20 "$tmp/log"
        ! grep "SKIP $device:\|this machine: device $device table (*null" "$tmp/log" || fail "$p ran without $device" ;;
    esac
done
bench=build/release/tests/bench/bench_model
step 60 'random tiny model' python3 tests/bench/random_gguf.py "$tmp/tiny.gguf" --format bf16 --shape tiny
measured 60 'same tokens, random model' $bench $device "$tmp/tiny.gguf" --same cpu --steps $([ $emu ] && echo 4 || echo 48) --tag "$tag"
model=${STEPD_TEST_MODEL:-models/smollm2-135m-instruct-q4_1.gguf}
if [ $emu ]; then
    :
elif [ -r "$model" ]; then
    measured 60 'same tokens, default model' $bench $device "$model" --same cpu --steps 48 --tag "$tag"
else
    note "skipped: $model is not there, so greedy text is compared on random weights only"
fi

sanitizer=$(command -v compute-sanitizer || ls "${nvcc:+$(dirname "$nvcc")}/compute-sanitizer" 2>/dev/null)
if [ $emu ]; then
    note 'skipped: compute-sanitizer needs a GPU'
elif [ -z "$sanitizer" ]; then
    note 'skipped: compute-sanitizer is not installed'
else
    for tool in memcheck racecheck; do
        for n in test_ptx test_norm test_rope_kv test_image; do
            note "$tool $n"
            step 60 "$tool $n" "$sanitizer" --tool $tool --error-exitcode 9 "$tmp/bin/$n" > "$tmp/log" 2>&1
            tail -4 "$tmp/log"
        done
    done
fi

note 'kernels: speed'
measured 150 'bench_kernels' "$tmp/bin/bench_kernels" ${emu:+--tiny} --commit "$commit"

note 'models: speed'
shape=llama-3-8b batches='1 16 64 256'
[ $emu ] && shape=tiny batches='1 3'
for format in q4_k bf16; do
    step 120 "random $format model" python3 tests/bench/random_gguf.py "$tmp/model.gguf" --format $format --shape $shape > "$tmp/made" || continue
    measured 150 "bench_model $format" $bench $device "$tmp/model.gguf" --steps $([ $emu ] && echo 1 || echo 32) --context $([ $emu ] && echo 8 || echo 64) \
        --tag "\"format\": \"$format\", \"shape\": \"$shape\", \"made\": $(cat "$tmp/made"), $tag" $batches
    rm -f "$tmp/model.gguf"
done

note 'pictures: speed of the stages'
picture=${STEPD_TEST_IMAGE_MODEL:-models/tiny-t2i}
for batch in $([ $emu ] && echo 1 || echo '1 16'); do
    measured 90 "bench_image, $batch at a time" bash -o pipefail -c 'build/release/tests/bench/bench_image "$@" | sed "s#}\$#, $0}#"' \
        "\"picture_model\": \"$picture\", $tag" "$picture" --device $device --batch "$batch" $([ $emu ] && echo '--size 16 --steps 2 --rounds 1')
done

note "$(wc -l < "$out") results in $out, ${SECONDS} s"
[ -z "${OUT-}" ] || cp "$out" "$OUT/"
[ $emu ] && [ "$(grep -c '"kernel"\|"model_step"\|"picture_model"' "$out")" -lt 28 ] && fail 'results are missing'
[ $failed -eq 0 ] && echo 'device: passed' || echo 'device: FAILED'
exit $failed
