# One Makefile. `make` builds build/<variant>/stepd; variants: release (default), asan, tsan, debug.
#   make run | test | lint | bench | asan | tsan | fuzz | install | clean
VARIANT ?= release
B       := build/$(VARIANT)
CC      := gcc
PYTHON  ?= python3
PREFIX  ?= /usr/local
VERSION := 0.1.0

PKGS    := libmicrohttpd libuv jansson libpcre2-8 libutf8proc libcurl inih gnutls
OPT_release := -O2 -g -DNDEBUG -D_FORTIFY_SOURCE=2
OPT_debug   := -O1 -g
OPT_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan    := -O1 -g -fsanitize=thread
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wsign-compare -Werror
CFLAGS  := -std=c17 -D_GNU_SOURCE -DSTEPD_VERSION='"$(VERSION)"' -I. $(WARN) $(OPT_$(VARIANT)) -fPIE -fstack-protector-strong \
           -include engine/base/banned.h -MMD -MP $(EXTRA_CFLAGS)
SYS     = $(shell pkg-config --cflags $(PKGS) | sed 's/-I/-isystem /g')
LDFLAGS := $(filter -fsanitize=%,$(OPT_$(VARIANT))) -pie -Wl,-z,relro,-z,now
LIBS    = $(shell pkg-config --libs $(PKGS)) -ldl -lpthread -lm

# Sources by wildcard; CPU kernel families are compiled once per ISA (engine/cpu/kern_*.c).
DIRS    := engine/base conf engine engine/text engine/load engine/quant engine/models engine/ref engine/cpu sched api server
ALL_C   := $(foreach d,$(DIRS),$(wildcard $(d)/*.c))
KERN_C  := $(filter engine/cpu/kern_%.c,$(ALL_C))
LIB_C   := $(filter-out $(KERN_C) server/main.c,$(ALL_C))
ISAS    := scalar avx2 avx512 amx
ISA_scalar := -O3
ISA_avx2   := -O3 -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ISA_amx    := $(ISA_avx512) -mavx512bf16 -mavx512vbmi -mavx512vnni -mamx-tile -mamx-bf16 -mamx-int8
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

define KERN_RULE
$(B)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$(CC) $(CFLAGS) $(ISA_$(1)) -ffp-contract=off -DCPU_ISA=$(1) -DCPU_ISA_$(1)=1 -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call KERN_RULE,$(i))))

# Tests: every tests/<group>/test_*.c is a program. tests/sched links the fake engine before the library.
TEST_C  := $(wildcard tests/*/test_*.c)
TESTS   := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_C))
TEST_EXTRA_sched := $(B)/tests/fake_engine.o
HELPERS := $(filter-out tests/fake_engine.c,$(wildcard tests/*.c))
HELP_O  := $(patsubst %.c,$(B)/%.o,$(HELPERS))

.SECONDEXPANSION:
$(B)/tests/%: $(B)/tests/%.o $$(TEST_EXTRA_$$(firstword $$(subst /, ,$$*))) $(HELP_O) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

# test-<group>: build and run the C tests of one group, e.g. make test-unit
in_group = $(foreach t,$(TESTS),$(if $(filter $(1),$(notdir $(patsubst %/,%,$(dir $(t))))),$(t)))
test-%: $$(call in_group,$$*)
	@set -e; for t in $^; do case $$t in */tests/*/test_*) echo "== $$t"; $$t;; esac; done

clean:
	rm -rf build

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.PHONY: all lib clean run test lint bench asan tsan fuzz install
.DELETE_ON_ERROR:
.SECONDARY:
