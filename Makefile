# The commands of the project; `make help` lists them. Real work is in CMake (presets), scripts/ and .ci/run.

.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
BUILD := build/release
export CTEST_OUTPUT_ON_FAILURE := 1
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
# Clones share what was compiled.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
endif

# $(call compile,PRESET,TARGETS): configures once, then builds.
compile = cmake --preset $(1) > /dev/null && cmake --build build/$(1) -j $(JOBS) $(if $(2),--target $(2))
ctest = ctest --test-dir build/$(1) -j $(JOBS) --no-label-summary

.PHONY: help setup build run test test-all lint bench docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing (as root on Debian; else says what to install)
	@scripts/setup

build: setup ## the program: build/release/plait
	@$(call compile,release,plait_program)

run: build ## measure the default case; table on the screen, figures in out/run.json
	@mkdir -p out
	$(BUILD)/plait run --json out/run.json

test: setup ## build everything and run the tests on a seeded sample of the case products
	@$(call compile,release)
	$(call ctest,release)

# The sanitizers' and emulated runs take the sample; the full products run once, natively. Slow: about an hour on two cores.
EMULATED := tests_base tests_kernels tests_ops tests_moe
test-all: ## everything: sanitizers, clang, aarch64 under qemu, full case products, install
	@scripts/setup --all
	@for preset in sanitize tsan clang; do \
	  echo "== $$preset"; \
	  $(call compile,$$preset) && $(call ctest,$$preset) || exit 1; \
	done
	@echo "== aarch64"
	@$(call compile,aarch64,$(EMULATED))
	$(call ctest,aarch64) -R '^(base|kernels|ops|moe)\.'
	@echo "== release, full products"
	@$(call compile,release)
	PLAIT_TEST_FULL=1 $(call ctest,release)

lint: ## format, clang-tidy, ruff, mypy, shellcheck, structure
	@scripts/setup --all
	@cmake --preset release > /dev/null
	@scripts/lint

bench: build ## grouped matmul over a grid of shapes, beside the peak probed in the same run
	@mkdir -p out
	$(BUILD)/plait bench gmm --json out/bench_gmm.json

docs: setup ## write the documentation that is made from the program
	@$(call compile,release,tests_base tests_cli)
	PLAIT_UPDATE_DOCS=1 $(BUILD)/tests/tests_base --gtest_filter='*Doc.*' --gtest_brief=1
	PLAIT_UPDATE_DOCS=1 $(BUILD)/tests/tests_cli --gtest_filter='*Doc.*' --gtest_brief=1

clean: ## remove what was built and measured
	rm -rf build out
