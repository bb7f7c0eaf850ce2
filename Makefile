# The front door. Everything else is meson.
BUILD ?= build
SHELL := /bin/bash
# Random calls are new with every change of src, and the same each time that it is tested; `make soak` draws new ones.
TREE := $(shell cat .tree 2>/dev/null || git rev-parse --short=8 HEAD:src 2>/dev/null)
export KR_CHECK_SEED ?= $(shell printf %d 0x$(or $(TREE),1))

help: ## print this help
	@echo "krait: Mamba and attention models on any CPU and any NVIDIA GPU"; echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## install the packages that the build needs (apt; asks for root if it has to)
	@tools/setup

build: setup ## build the program, build/krait, and libkrait.so
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD)
	@ninja -C $(BUILD) program

demo: setup ## build what cleaning a recording takes (krait-demo: no code for GPUs) and enhance the bundled one; results in demo-output
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD)
	@ninja -C $(BUILD) krait-demo
	@tools/demo $(BUILD)/krait-demo

demo-video: setup ## build the program as demo does, and ask a tiny model of random weights about a film that is made first (its words are meaningless); results in demo-output
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD)
	@ninja -C $(BUILD) krait-demo
	@tools/demo-video $(BUILD)/krait-demo

test: build ## build and run every test; one summary at the end
	@ninja -C $(BUILD)
	@tools/run-tests $(BUILD)

quick: ## build and run the tests of what changed since main (SINCE=commit)
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD)
	@tools/quick $(BUILD) $(SINCE)

wheel: build ## one Python wheel for every Python and torch, and the drop-ins' (into build/wheels)
	@mkdir -p $(BUILD)/wheels && KRAIT_LIBRARY=$(BUILD)/src/libkrait.so python3 python/backend/krait_build.py $(BUILD)/wheels
	@PYTHONPATH=python python3 -m krait dropin wheel $(BUILD)/wheels

test-python: build ## run the Python tests under every Python with torch found here
	@tools/test-python $(BUILD)

test-emulated: build ## run the Python tests on golden files with the emulated GPU's kernels, tier by tier (KRAIT_PYTHON: a Python with torch)
	@ninja -C $(BUILD) tests/cuda/libemulated_krait.so
	@tools/test-emulated $(BUILD)

lint: ## check the include law, forbidden calls, sizes
	@python3 tools/lint_rooms.py

soak: build ## random calls with new seeds, round after round for SOAK_MINUTES=10: every op on the CPU's rows and on the GPU's, emulated
	@ninja -C $(BUILD)
	@tools/soak $(BUILD) $(or $(SOAK_MINUTES),10)

sanitize: build ## run the tests under ASan + UBSan, and the threaded ones under TSan
	@tools/run-sanitizers

bench: build ## time the scan, its gradient and the convolution beside what this machine can do
	@for op in selective_scan selective_scan_bwd causal_conv1d causal_conv1d_bwd state_update; do $(BUILD)/krait bench $$op || exit 1; done

docs: ## rewrite the tables of docs/OPS.md from the signatures
	@python3 tools/make_sigs.py --docs docs/OPS.md src/ops/*/*.sig

gpus: build ## assemble all device code for every GPU architecture (ptxas in PATH, an older one in PTXAS_12) and write docs/GPUS.md
	@python3 tests/cuda/assemble.py $(BUILD)/src/cuda --write docs/GPUS.md

aarch64: ## build the operators for AArch64 and walk them under an emulator (skips where the cross tools cannot be had)
	@tools/setup aarch64 || true
	@tools/run-aarch64

fuzz: build ## run each fuzz target for FUZZ_SECONDS=60 (fails where clang and its runtime are not there)
	@tools/setup fuzz
	@tools/run-fuzz $(or $(FUZZ_SECONDS),60)

install: setup ## install program, libkrait, headers, pkg-config, CMake, manual and completions (PREFIX=/usr/local, DESTDIR=)
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD)
	@[ -z "$(PREFIX)" ] || meson configure $(BUILD) -Dprefix=$(PREFIX)
	@ninja -C $(BUILD) installable
	@meson install -C $(BUILD) --no-rebuild $(if $(DESTDIR),--destdir "$(DESTDIR)")

dist: build ## source archive with the device code of this tree, so that clang is not needed to build it (into dist/)
	@tools/dist $(BUILD)

tarball: build ## the program with all libraries that it needs, for any Linux of this machine's kind (into dist/)
	@tools/tarball $(BUILD)

deb: ## Debian packages of program, library and headers, checked by lintian (into dist/)
	@tools/setup
	@tools/setup deb
	@tools/deb $(BUILD)

.PHONY: soak quick dist tarball deb help docs gpus aarch64 setup build test wheel test-python test-emulated lint sanitize fuzz install demo bench
.DEFAULT_GOAL := help
