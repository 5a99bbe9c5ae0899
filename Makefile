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

# The Python module belongs to the release build where what it needs is there (scripts/setup --python).
python_there = import hypothesis, nanobind, os, pytest, sysconfig; os.path.exists(sysconfig.get_path("include") + "/Python.h") and print("yes")
python_on = -DPLAIT_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python
python = $(if $(shell .venv/bin/python -c '$(python_there)' 2>&1 | grep yes),$(python_on),-DPLAIT_PYTHON=OFF)
# $(call compile,PRESET,TARGETS): configures once, then builds.
compile = cmake --preset $(1) $(if $(filter release,$(1)),$(python)) > /dev/null && cmake --build build/$(1) -j $(JOBS) $(if $(2),--target $(2))
ctest = ctest --test-dir build/$(1) -j $(JOBS) --no-label-summary

.PHONY: help setup setup-python build run test test-all lint bench docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing (as root on Debian; else says what to install)
	@scripts/setup

setup-python:
	@scripts/setup --python

build: setup ## the program: build/release/plait
	@$(call compile,release,plait_program)

run: build ## measure the default case; table on the screen, figures in out/run.json
	@mkdir -p out
	$(BUILD)/plait run --json out/run.json

test: setup-python ## build everything and run the tests, C++ and Python, on a seeded sample of the case products
	@$(call compile,release)
	$(call ctest,release)

# The sanitizers' and emulated runs take the sample; the full products run once, natively. Slow: about an hour on two cores.
EMULATED := tests_base tests_kernels tests_ops tests_moe
test-all: setup-python ## everything: sanitizers, clang, aarch64 under qemu, full case products, install
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
