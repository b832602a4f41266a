# One Makefile. `make` builds build/<variant>/stepd; variants: release (default), asan, tsan, debug.
#   make run | test | lint | bench | asan | tsan | fuzz | install | clean
VARIANT ?= release
B       := build/$(VARIANT)
CC      := gcc
PYTHON  ?= python3
PREFIX  ?= /usr/local
SYSCONFDIR ?= /etc
VERSION := 0.1.0

PKGS    := libmicrohttpd libuv jansson libpcre2-8 libutf8proc libcurl inih gnutls libpng libjpeg libwebp libwebpdemux libwebpmux zlib sndfile samplerate
OPT_release := -O2 -g -DNDEBUG -D_FORTIFY_SOURCE=2
OPT_debug   := -O1 -g
OPT_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan    := -O1 -g -fsanitize=thread
OPT_fuzz    := $(OPT_asan) -fsanitize-coverage=trace-pc
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wsign-compare -Werror
CFLAGS  := -std=c17 -D_GNU_SOURCE -DSTEPD_VERSION='"$(VERSION)"' -I. $(WARN) $(OPT_$(VARIANT)) -fPIE -fstack-protector-strong \
           -include engine/base/banned.h -MMD -MP $(EXTRA_CFLAGS)
SYS     = $(shell pkg-config --cflags $(PKGS) | sed 's/-I/-isystem /g')
LDFLAGS := $(filter -fsanitize=%,$(OPT_$(VARIANT))) -pie -Wl,-z,relro,-z,now
LIBS    = $(shell pkg-config --libs $(PKGS)) -ldl -lpthread -lm

# Sources by wildcard; CPU kernel families are compiled once per ISA (engine/cpu/kern_*.c).
DIRS    := engine/base conf engine engine/text engine/load engine/quant engine/models engine/nn engine/image engine/encode engine/audio engine/ref engine/cpu sched api server
ALL_C   := $(foreach d,$(DIRS),$(wildcard $(d)/*.c))
KERN_C  := $(filter engine/cpu/kern_%.c,$(ALL_C))
LIB_C   := $(filter-out $(KERN_C) server/main.c,$(ALL_C))
ISAS    := scalar avx2 avx512 amx
ISA_scalar :=
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ISA_amx    := $(ISA_avx512) -mavx512bf16 -mavx512vbmi -mavx512vnni -mamx-tile -mamx-bf16 -mamx-int8
# Kernels are large after inlining: a sanitizer that instruments every load makes gcc take minutes at -O3, and UBSan has little to
# find in vector code.
KERN_release := -O3
KERN_OPT := $(or $(KERN_$(VARIANT)),-O1 -fno-sanitize=undefined)
KERN_O  := $(foreach i,$(ISAS),$(patsubst %.c,$(B)/$(i)/%.o,$(KERN_C)))
LIB_O   := $(patsubst %.c,$(B)/%.o,$(LIB_C)) $(KERN_O)
LIB     := $(B)/libstepd.a

all: lib $(if $(wildcard server/main.c),$(B)/stepd)
lib: $(LIB)

$(B)/stepd: $(B)/server/main.o $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(LIB): $(LIB_O)
	@rm -f $@
	ar rcs $@ $^

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SYS) -c -o $@ $<

# Files that are part of an object (.incbin), which -MMD cannot see.
$(B)/server/catalogue.o: conf/models.ini
$(B)/api/page.o: $(wildcard api/page/*)
$(B)/server/catalogue.o $(B)/server/models.o: CFLAGS += -DSTEPD_DATADIR='"$(PREFIX)/share/stepd"'

define KERN_RULE
$(B)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$(CC) $(CFLAGS) $(KERN_OPT) $(ISA_$(1)) -ffp-contract=off -DCPU_ISA=$(1) -DCPU_ISA_$(1)=1 -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call KERN_RULE,$(i))))

# CUDA. The kernels (.cu) are compiled by nvcc for GPUs (make cuda) and by g++ against cuda/emu.h, which runs them on the CPU
# (make cuda-emu); both give a plug-in beside the daemon. The plug-in has its own copy of what it uses of the engine.
CXX     := g++
CU_OPT_release := -O2
CU_OPT_asan := -O1 -fsanitize=address,bounds,alignment -fno-sanitize-recover=all -fno-omit-frame-pointer
CU_OPT_tsan := -O1 -fsanitize=thread
CU_OPT  := $(or $(CU_OPT_$(VARIANT)),-O1)
CU_BASE := $(wildcard engine/base/*.c engine/quant/*.c) $(wildcard engine/ops_check*.c)
CU_C    := $(wildcard cuda/*.c)
CU_K    := $(wildcard cuda/*.cu)
EMU     := $(B)/cuda-emu
EMU_O   := $(patsubst %.c,$(EMU)/%.o,$(CU_C) $(CU_BASE)) $(patsubst %,$(EMU)/%.o,$(CU_K) $(wildcard cuda/*.cc))
EMU_CXX := $(CXX) -x c++ -std=c++17 -D_GNU_SOURCE -DCUDA_EMU -I. -Wall -Wextra -Werror -Wno-unused-function -Wno-unknown-pragmas -g $(CU_OPT) -fPIC -fvisibility=hidden -ffp-contract=off -MMD -MP
cuda-emu: $(B)/stepd-cuda-emu.so
$(B)/stepd-cuda-emu.so: $(EMU_O)
	$(CXX) $(filter -fsanitize=%,$(CU_OPT)) -shared -Wl,-Bsymbolic -o $@ $^ -ldl -lpthread -lm
$(EMU)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(filter-out -fPIE,$(CFLAGS)) -DCUDA_EMU -fPIC -fvisibility=hidden -ffp-contract=off -c -o $@ $<
$(EMU)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(EMU_CXX) -c -o $@ $<
$(EMU)/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(EMU_CXX) -c -o $@ $<
CU_TESTS := $(patsubst %.cu,$(B)/%,$(wildcard tests/cuda/test_*.cu))
CU_REF  := $(patsubst %.c,$(EMU)/%.o,$(wildcard engine/ref/*.c tests/cuda/*.c))
$(CU_TESTS): $(B)/tests/cuda/%: $(EMU)/tests/cuda/%.cu.o $(EMU_O) $(CU_REF)
	@mkdir -p $(@D)
	$(CXX) $(filter -fsanitize=%,$(CU_OPT)) -o $@ $^ -ldl -lpthread -lm
test-cuda: $(CU_TESTS)
	@$(PYTHON) tests/run.py --parallel $^

# For GPUs: nvcc of $CUDA_HOME, of PATH, or of the wheels that `conf/setup.sh cuda` puts into .cuda.
NVCC    ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) $(wildcard .cuda/bin/nvcc))
ARCHS   ?= 80 90a 100
NV      := build/cuda
NV_INC   = $(patsubst %,-isystem %,$(wildcard $(dir $(NVCC))../include .cuda/include /usr/local/cuda/include))
NVFLAGS := -std=c++17 -O3 -I. --compiler-options -fPIC,-fvisibility=hidden -Xptxas -v,-warn-spills --expt-relaxed-constexpr
NV_O     = $(patsubst %.c,$(NV)/%.o,$(CU_C) $(CU_BASE)) $(patsubst %,$(NV)/%.o,$(CU_K))
GENCODE  = $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_80,code=compute_80
cuda: build/release/stepd-cuda.so
build/release/stepd-cuda.so: $(NV_O)
	@mkdir -p $(@D)
	$(NVCC) $(GENCODE) -shared -cudart static -o $@ $^ -Xlinker -Bsymbolic -ldl -lpthread -lm
$(NV)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(filter-out -fPIE,$(CFLAGS)) $(NV_INC) -fPIC -fvisibility=hidden -c -o $@ $<
$(NV)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@$(NVCC) $(NVFLAGS) $(GENCODE) -MMD -MF $(@:.o=.d) -c -o $@ $< 2>$(@:.o=.ptxas) || { cat $(@:.o=.ptxas); exit 1; }

# Tests: every tests/<group>/test_*.c is a program. tests/sched links the fake engine before the library.
TEST_C  := $(wildcard tests/*/test_*.c)
TESTS   := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_C))
TEST_EXTRA_sched := $(B)/tests/fake_engine.o $(B)/tests/fake_lanes.o
HELPERS := $(filter-out tests/fake_%.c,$(wildcard tests/*.c))
HELP_O  := $(patsubst %.c,$(B)/%.o,$(HELPERS))

.SECONDEXPANSION:
$(B)/tests/%: $(B)/tests/%.o $$(TEST_EXTRA_$$(firstword $$(subst /, ,$$*))) $(HELP_O) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

# test-<group>: build and run the C tests of one group, e.g. make test-unit
in_group = $(foreach t,$(TESTS),$(if $(filter $(1),$(notdir $(patsubst %/,%,$(dir $(t))))),$(t)))
test-%: $$(call in_group,$$*)
	@$(PYTHON) tests/run.py --parallel $^

# Everything of one variant: C tests two at a time, then what measures time or starts daemons.
# Tests that build or fetch a whole system: `make test-long`.
LONG_TESTS := tests/deploy/test_container.py tests/api/test_cuda_emu.py tests/models/test_perplexity.py
PY_TESTS := $(filter-out $(LONG_TESTS),$(wildcard tests/*/test_*.py))
C_PARALLEL = $(CU_TESTS) $(call in_group,unit) $(call in_group,sched) $(call in_group,ops) $(call in_group,api) $(call in_group,audio)
tests: $(TESTS) $(CU_TESTS) $(B)/stepd $(B)/stepd-cuda-emu.so
check: tests
	@$(PYTHON) tests/run.py --parallel $(C_PARALLEL) --serial $(call in_group,models) $(addprefix $(VARIANT)=,$(PY_TESTS))

MODEL   ?= smollm2-135m
IMAGE_MODEL ?= $(CURDIR)/models/tiny-t2i
export STEPD_MODELS ?= $(CURDIR)/models
export STEPD_TEST_MODEL ?= $(STEPD_MODELS)/smollm2-135m-instruct-q4_1.gguf
pull: $(B)/stepd ; @$(B)/stepd pull $(MODEL)
pull-test: pull ; -@$(B)/stepd pull all-minilm-l6-v2; $(B)/stepd pull whisper-tiny.en

# The two commands of the README.
run:
	@conf/setup.sh build
	@$(MAKE) -s -j2 pull
	@exec $(B)/stepd serve $(MODEL) $(IMAGE_MODEL) $(ARGS)

# The sanitizers' short form: these, of the whole suites that `make asan` and `make tsan` run.
ASAN_SHORT = $(patsubst $(B)/%,build/asan/%,$(CU_TESTS) $(call in_group,unit) $(call in_group,api) $(call in_group,audio) $(addprefix $(B)/tests/,models/test_corrupt models/test_quantize ops/test_mla ops/test_moe ops/test_state)) $(addprefix asan=,tests/api/test_http.py tests/fault/test_alloc.py tests/fault/test_engine.py)
TSAN_SHORT = $(patsubst $(B)/%,build/tsan/%,$(CU_TESTS)) build/tsan/tests/unit/test_pool build/tsan/tests/sched/test_worker tsan=tests/api/test_http.py
test: export CUDA_TEST_SHORT := 1
test:
	@conf/setup.sh test cuda browser
	@$(MAKE) -s lint
	@$(MAKE) -s -j2 tests
	@$(MAKE) -s pull-test
	@$(MAKE) -s -j2 VARIANT=asan $(filter build/%,$(ASAN_SHORT)) build/asan/stepd $(patsubst $(B)/%,build/asan/%,$(FUZZ))
	@$(MAKE) -s -j2 VARIANT=tsan $(filter build/%,$(TSAN_SHORT)) build/tsan/stepd
	@$(PYTHON) tests/run.py --parallel $(C_PARALLEL) $(filter build/%,$(ASAN_SHORT) $(TSAN_SHORT)) \
	  --serial $(call in_group,models) $(addprefix release=,$(PY_TESTS)) $(filter %.py,$(ASAN_SHORT) $(TSAN_SHORT))

# The image, really built and run; the README's two commands on a bare Debian (docs/operations.md). Both need root.
test-long:
	@conf/setup.sh test deploy quantisers
	@$(MAKE) -s -j2 all
	@$(MAKE) -s pull; for m in gemma3-270m qwen2.5-coder-0.5b; do $(B)/stepd pull $$m || echo "$$m could not be had: its test is skipped"; done
	@$(MAKE) -s -j2 $(B)/stepd-cuda-emu.so $(B)/tests/models/test_image_cuda $(B)/tests/models/test_real $(B)/tests/models/test_corrupt
	@MUTANTS=all IMAGE_CUDA=all CORRUPT=all $(PYTHON) tests/run.py --timeout 3600 --serial $(addprefix release=,$(LONG_TESTS) tests/cuda/test_mutants.py) $(B)/tests/models/test_image_cuda $(B)/tests/models/test_real $(B)/tests/models/test_corrupt

bare:
	@conf/setup.sh deploy
	@tests/deploy/bare.sh $(ARGS)

# Whole suites under the sanitizers; `make test` runs a short form of both.
asan:
	@conf/setup.sh test
	@$(MAKE) -s pull-test
	@$(MAKE) -s -j2 VARIANT=asan tests
	@$(MAKE) -s VARIANT=asan check
# Threads meet in server, sched, the worker pool and the engine's door; kernels and parsers have one thread each.
TSAN_PY := $(addprefix tsan=,tests/api/test_http.py tests/api/test_errors.py tests/api/test_openai.py tests/fault/test_process.py)
tsan:
	@conf/setup.sh test
	@$(MAKE) -s pull
	@$(MAKE) -s -j2 VARIANT=tsan tests
	@$(MAKE) -s VARIANT=tsan check-tsan
check-tsan:
	@$(PYTHON) tests/run.py --parallel $(CU_TESTS) $(call in_group,unit) $(call in_group,sched) $(call in_group,api) $(B)/tests/models/test_step \
	  --serial $(TSAN_PY)

# Coverage-guided fuzzing with gcc (tests/fuzz/runner.c): each target for FUZZ_SECONDS, from FUZZ_SEED.
FUZZ_SECONDS ?= 20
FUZZ_SEED ?= 1
FUZZ := $(patsubst tests/fuzz/fuzz_%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
# Parsers only: kernels take minutes to compile with these sanitizers and see no foreign bytes.
FUZZ_O := $(patsubst %.c,$(B)/%.o,$(foreach d,engine/base engine/load engine/quant engine/text sched/request api server,$(filter $(d)/%,$(LIB_C)) $(filter $(d).c,$(LIB_C)))) $(patsubst %.c,$(B)/%.o,$(foreach d,nn/ image/files image/family image/names image/parts image/enc image/lm_enc image/t5 encode/ audio/ct2_names audio/files audio/mel audio/language audio/piece audio/window,$(wildcard engine/$(d)*.c)))
$(B)/libfuzz.a: $(FUZZ_O)
	@rm -f $@
	ar rcs $@ $^
$(B)/fuzz/%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/runner.o $(B)/tests/unxz.o $(B)/libfuzz.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
fuzz-run: $(FUZZ)
	@set -e; for f in $^; do $$f -t $(FUZZ_SECONDS) -s $(FUZZ_SEED); done
fuzz:
	@$(MAKE) -s -j2 VARIANT=fuzz fuzz-run

lint:
	@$(PYTHON) tests/lint/deps.py && $(PYTHON) tests/lint/size.py

bench: all $(B)/tests/bench/roofline $(B)/tests/bench/bench_image $(B)/tests/bench/bench_grammar $(B)/tests/bench/bench_sched
	@conf/setup.sh bench bench-images
	@$(MAKE) -s pull
	@$(PYTHON) tests/bench/compare.py $(ARGS) && $(PYTHON) tests/bench/compare.py --quick --rounds 5 --model $(or $(BENCH_MODEL),qwen2.5-coder-0.5b)
	@$(PYTHON) tests/bench/host_cost.py --all --keep && $(PYTHON) tests/bench/grammar.py && $(PYTHON) tests/bench/compare_images.py $(IMAGE_ARGS)

# What is generated from the option table and the tables of models; tests compare.
docs: all
	@$(B)/stepd options --markdown > docs/configuration.md
	@$(B)/stepd options --ini > conf/stepd.ini; $(PYTHON) tests/models/list_models.py --write

install: all
	install -D -m 755 $(B)/stepd $(DESTDIR)$(PREFIX)/bin/stepd
	[ ! -e $(B)/stepd-cuda.so ] || install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/stepd $(B)/stepd-cuda.so
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/stepd conf/models.ini conf/stepd.ini conf/grafana.json
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/stepd README.md $(wildcard docs/*.md docs/*.png) LICENSE
	install -D -m 644 conf/stepd.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/stepd.conf
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(SYSCONFDIR)/stepd $(DESTDIR)$(PREFIX)/share/stepd/models
	cp -r models/tiny-t2i $(DESTDIR)$(PREFIX)/share/stepd/models/
	sed 's#/usr/local#$(PREFIX)#g' conf/stepd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/stepd.service
	[ -e $(DESTDIR)$(SYSCONFDIR)/stepd/stepd.ini ] || sed 's#^; model =.*#model = $(MODEL)#' conf/stepd.ini > $(DESTDIR)$(SYSCONFDIR)/stepd/stepd.ini

clean:
	rm -rf build

-include $(shell find $(B) $(NV) -name '*.d' 2>/dev/null)
.PHONY: cuda cuda-emu test-cuda check-tsan all lib clean run test tests check pull pull-test lint bench asan tsan fuzz fuzz-run install docs test-long bare
.DELETE_ON_ERROR:
.SECONDARY:
