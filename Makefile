# The front door. Everything else is meson.
BUILD ?= build
SHELL := /bin/bash

help: ## print this help
	@echo "krait: Mamba and attention models on any CPU and any NVIDIA GPU"; echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## install the packages that the build needs (apt; asks for root if it has to)
	@tools/setup

build: setup ## build the program: build/krait
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD)
	@ninja -C $(BUILD)

demo: build ## enhance the bundled noisy recording; results in demo-output
	@tools/demo $(BUILD)

test: build ## run every test; one summary at the end
	@tools/run-tests $(BUILD)

wheel: build ## one Python wheel for every Python and torch, and the drop-ins' (into build/wheels)
	@mkdir -p $(BUILD)/wheels && KRAIT_LIBRARY=$(BUILD)/src/libkrait.so python3 python/backend/krait_build.py $(BUILD)/wheels
	@PYTHONPATH=python python3 -m krait dropin wheel $(BUILD)/wheels

test-python: build ## run the Python tests under every Python with torch found here
	@tools/test-python $(BUILD)

lint: ## check the include law, forbidden calls, sizes
	@python3 tools/lint_rooms.py

sanitize: build ## run the tests under ASan + UBSan, and the threaded ones under TSan
	@tools/run-sanitizers

bench: build ## time the scan, its gradient and the convolution beside what this machine can do
	@for op in selective_scan selective_scan_bwd causal_conv1d causal_conv1d_bwd state_update; do $(BUILD)/krait bench $$op || exit 1; done

gpus: build ## assemble all device code for every GPU architecture (ptxas in PATH, an older one in PTXAS_12) and write docs/GPUS.md
	@python3 tests/cuda/assemble.py $(BUILD)/src/cuda --write docs/GPUS.md

aarch64: ## build the operators for AArch64 and walk them under an emulator (skips where the cross tools are absent)
	@tools/run-aarch64

fuzz: build ## run each fuzz target for FUZZ_SECONDS=60 (needs clang and its runtime, else says so and stops)
	@tools/setup fuzz
	@tools/run-fuzz $(or $(FUZZ_SECONDS),60)

install: build ## install program, libraries and headers (PREFIX through meson configure)
	@meson install -C $(BUILD)

.PHONY: help gpus aarch64 setup build test wheel test-python lint sanitize fuzz install demo bench
.DEFAULT_GOAL := help
