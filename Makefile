# A thin front of CMake: each target is one or two commands that you could type yourself.
# The work is in CMakeLists.txt and scripts/. `make help` lists the targets.

BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

# CC from the command line or the environment is used; else the scripts look for gcc, then for cc.
ifeq ($(origin CC),default)
CC :=
endif

# Seconds per fuzz target: `make test` spends FUZZ_SECONDS, `make fuzz` spends FUZZ_LONG_SECONDS.
FUZZ_SECONDS      ?= 2
FUZZ_LONG_SECONDS ?= 600

# How long `make chaos` goes on, in seconds; SEED repeats a campaign.
CHAOS_SECONDS ?= 60

# The sweep of `make run`.
RUN_ARGS ?= -b 64 -e 16M -f 8

export BUILD JOBS V CC FUZZ_SECONDS CMAKE_ARGS ONLY

.DEFAULT_GOAL := all
.NOTPARALLEL:
.PHONY: all setup run test bench fuzz pauses chaos format docs install uninstall deb gpu-test clean help

all:
	@scripts/build.sh $(BUILD)

setup:
	@scripts/setup.sh test

run:
	@scripts/setup.sh run
	@scripts/build.sh $(BUILD)
	$(BUILD)/gantry perf net --ifname lo $(RUN_ARGS)

test:
	@scripts/setup.sh test
	@scripts/test.sh $(STAGES)

bench: all
	@scripts/bench.sh

fuzz: setup
	@scripts/fuzz.sh $(FUZZ_LONG_SECONDS)

pauses: setup
	@scripts/pauses.sh $(PAUSES_ARGS)

chaos: setup
	@scripts/build.sh $(BUILD) chaos_programs
	@scripts/chaos.py --build $(BUILD) $(if $(SEED),--seed $(SEED)) --seconds $(CHAOS_SECONDS) $(CHAOS_ARGS)

format:
	@command -v clang-format >/dev/null || { echo "make format: clang-format is not installed" >&2; exit 1; }
	find include src tools tests bench \( -name '*.c' -o -name '*.h' \) -print0 | xargs -0 -r clang-format -i

docs: all
	env -i $(BUILD)/gantry doctor --params-markdown > docs/params.md
	env -i $(BUILD)/gantry doctor --params-man > man/gantry-params.7
	python3 scripts/layers.py --write
	python3 scripts/measured.py --write

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

uninstall:
	@cmake -Dbuild=$(BUILD) -Dprefix=$(PREFIX) -P cmake/uninstall.cmake

deb: all
	@umask 022 && cd $(BUILD) && cpack

gpu-test:
	@scripts/build.sh $(BUILD) tests
	ctest --test-dir $(BUILD) -L gpu --output-on-failure --no-tests=error --output-junit junit.xml
	@scripts/show-skips.sh $(BUILD)/junit.xml

clean:
	rm -rf $(BUILD) build-clang build-asan build-tsan build-fuzz build-gpu corpus-work

help:
	@echo 'Targets (the default is all):'
	@echo '  all       build build/gantry and the libraries in build/lib/: libgantry.so, libnccl.so.2, the plugin, the emulated NIC'
	@echo '  run       install what is missing, build, and measure the plugin on loopback: gantry perf net'
	@echo '  test      install what is missing, then the tests: the plain stage, or STAGES="plain slow clang asan tsan fuzz" (all)'
	@echo '  bench     measure; JSON lines under build/bench/'
	@echo '  fuzz      every fuzz target for FUZZ_LONG_SECONDS seconds (needs clang)'
	@echo '  pauses    the unit tests with random pauses in all threads: what a loaded machine does, on purpose'
	@echo '  chaos     faults of networks and processes against connections under load: docs/chaos.md (needs root)'
	@echo '  format    clang-format over the sources'
	@echo '  docs      the generated parts of the pages: parameters, the tree of layers, the tables of figures'
	@echo '  install   install under PREFIX (DESTDIR is honoured)'
	@echo '  uninstall remove what install has put under PREFIX'
	@echo '  deb       the Debian package, into $(BUILD)/'
	@echo '  gpu-test  the tests that need a GPU'
	@echo '  clean     remove every build folder'
	@echo '  setup     install the Debian packages that tests want and that are missing, nothing else'
	@echo '  help      this list'
	@echo
	@echo 'Variables, with their values now:'
	@echo '  JOBS=$(JOBS)  V=$(V) (1: show every command)  CC=$(CC)  BUILD=$(BUILD)  PREFIX=$(PREFIX)'
	@echo '  STAGES=$(STAGES) (of test; empty: plain)  ONLY=$(ONLY) (of test: a pattern for the names of tests)  CMAKE_ARGS=$(CMAKE_ARGS)  RUN_ARGS=$(RUN_ARGS)'
	@echo '  FUZZ_SECONDS=$(FUZZ_SECONDS)  FUZZ_LONG_SECONDS=$(FUZZ_LONG_SECONDS) (per fuzz target, in test and in fuzz)'
	@echo '  CHAOS_SECONDS=$(CHAOS_SECONDS)  SEED=$(SEED) (of chaos; empty: another one each time)  CHAOS_ARGS=$(CHAOS_ARGS) (--list, --only FAULT)'
	@echo '  PAUSES_ARGS=$(PAUSES_ARGS) (of pauses: how many seeds, and a pattern for the tests)'
