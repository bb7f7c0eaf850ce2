# Entry points; the build itself is meson's.
BUILD ?= build
SHELL := /bin/bash
# The seed of random calls changes with src and is the same for the same src; `make soak` draws new ones.
export V
TREE := $(shell cat .tree 2>/dev/null || git rev-parse --short=8 HEAD:src 2>/dev/null)
export KR_CHECK_SEED ?= $(shell printf %d 0x$(or $(TREE),1))

help: ## print this help
	@echo "krait: Mamba and attention models on any CPU and any NVIDIA GPU"; echo
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## install the packages needed to build (apt; asks for root if necessary)
	@tools/setup

build: setup ## build the program build/krait and libkrait-ops.so (V=1: show every command)
	@tools/build $(BUILD) program

demo: ## build krait-demo (no GPU code) and enhance the bundled recording; results in demo-output
	@tools/setup demo
	@tools/build $(BUILD) krait-demo
	@tools/demo $(BUILD)/krait-demo

demo-video: ## build krait-demo and ask a tiny random model about a generated video (meaningless words); results in demo-output
	@tools/setup demo video
	@tools/build $(BUILD) krait-demo
	@tools/demo --video $(BUILD)/krait-demo

demo-restore: ## build krait-demo and restore a generated film with tiny random models (meaningless); results in demo-output
	@tools/setup demo video
	@tools/build $(BUILD) krait-demo
	@tools/demo --restore $(BUILD)/krait-demo

test: build ## build and run all tests; summary at the end
	@tools/setup test video || echo "test: without ffmpeg no test reads a video"
	@tools/build $(BUILD)
	@tools/run-tests $(BUILD)

quick: ## build and run the tests of files changed since main (SINCE=commit)
	@tools/setup test
	@tools/build $(BUILD) build.ninja
	@tools/quick $(BUILD) $(SINCE)

wheel: build ## build the Python wheel (for any Python and torch) and the drop-ins' (into build/wheels)
	@mkdir -p $(BUILD)/wheels && KRAIT_LIBRARY=$(BUILD)/src/libkrait-ops.so python3 python/backend/krait_build.py $(BUILD)/wheels
	@PYTHONPATH=python python3 -m krait dropin wheel $(BUILD)/wheels

test-python: build ## run the Python tests under every Python with torch found
	@tools/test-python $(BUILD)

test-emulated: build ## run the Python golden-file tests on the emulated GPU, tier by tier (KRAIT_PYTHON: a Python with torch)
	@tools/setup test
	@tools/build $(BUILD) tests/cuda/libemulated_krait.so
	@tools/test-python --emulated $(BUILD)

lint: ## check include rules, forbidden calls, sizes; after a build also which room's symbols each object file needs
	@python3 tools/lint_rooms.py $(dir $(wildcard $(BUILD)/compile_commands.json))

soak: build ## random calls with new seeds for SOAK_MINUTES=10: every op on the CPU and on the emulated GPU
	@tools/setup test
	@tools/build $(BUILD)
	@tools/torture --calls $(BUILD) $(or $(SOAK_MINUTES),10)

sanitize: build ## run the tests under ASan + UBSan, the threaded ones under TSan
	@tools/run-sanitizers

bench: build ## time the scan, its gradient and the convolution against this machine's limits
	@for op in selective_scan selective_scan_bwd causal_conv1d causal_conv1d_bwd state_update; do $(BUILD)/krait bench $$op || exit 1; done

docs: ## rewrite the tables of docs/OPS.md from the signatures
	@python3 tools/make_sigs.py --docs docs/OPS.md src/ops/*/*.sig src/blocks/*/*.sig src/models/primeknet/ops/*/*.sig src/models/lm/ops/*/*.sig src/models/seedvr/ops/*/*.sig

gpus: build ## assemble all device code for all GPU architectures (ptxas in PATH, an older one in PTXAS_12); writes docs/GPUS.md
	@python3 tests/cuda/assemble.py $(BUILD)/src/cuda --write docs/GPUS.md

aarch64: ## build the operators for AArch64 and check them under an emulator (skips without cross tools)
	@tools/setup aarch64 || true
	@tools/run-aarch64

fuzz: build ## run each fuzz target for FUZZ_SECONDS=60 (fails without clang and its runtime)
	@tools/setup fuzz
	@tools/run-fuzz $(or $(FUZZ_SECONDS),60)

install: setup ## install program, libkrait, headers, pkg-config, CMake, manual and completions (PREFIX=/usr/local, DESTDIR=, LIBDIR=)
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" LIBDIR="$(LIBDIR)" tools/install $(BUILD)

uninstall: ## remove what the last make install installed
	@tools/install --remove $(BUILD)

bare-debian: ## README's commands in a minimal Debian 13 and 12 (debootstrap and root; SUITES="trixie bookworm")
	@tools/bare-debian $(SUITES)

dist: build ## source archive with compiled device code, which builds without clang (into dist/)
	@tools/dist $(BUILD)

tarball: build ## the program with all its libraries, for any Linux of this architecture, as an archive and as a wheel (into dist/)
	@tools/tarball $(BUILD)

deb: ## Debian packages of program, library and headers, checked with lintian (into dist/)
	@tools/setup deb
	@tools/deb $(BUILD)

.PHONY: uninstall bare-debian soak quick dist tarball deb help docs gpus aarch64 setup build test wheel test-python test-emulated lint sanitize fuzz install demo demo-restore demo-video bench
.DEFAULT_GOAL := help
