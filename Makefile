# Two commands do everything on a new Debian 12 / Ubuntu 24.04 machine, as root:
#   make demo   the paper's case a on the emulated rack: table, JSON, plots
#   make test   lint, types, layering, unit, contract, integration and training tests
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
CASE ?= a
OUT ?= out
STORIES ?= 10000
# Racks at a time, in lanes: one for each core.
RACKS ?= $(shell nproc)
# Tests without a rack wait more than they compute: two for each core.
WORKERS ?= $(shell expr 2 \* $$(nproc))
# Where tests without a rack keep their files: in memory, if there are 4 GiB. A disk that the rack
# uses at the same time may not answer for ten seconds, which is a fault to the controller.
FILES ?= $(shell test "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt 4194304 \
  2>/dev/null && echo /dev/shm || echo /tmp)
# Hashes are fixed: a story's order comes from its seed alone.
PYTEST_ALONE = PYTHONHASHSEED=0 PYTEST_DEBUG_TEMPROOT=$(FILES) $(PY) -m pytest -q -o tmp_path_retention_policy=failed
# Runs targets one after the other, each line behind a name, whatever runs beside them.
LANE = env MAKEFLAGS= $(MAKE) --no-print-directory $(1) 2>&1 | sed -u 's/^/$(2) | /'

.PHONY: help setup demo test lanes rackless rack check lint types layers unit stories explore fuzz contract web integration racks training roce torch-image protos lock dist clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: ## apt packages, virtual environment, container images (idempotent, root)
	@testbed/setup/setup.sh

demo: setup ## the paper's experiment: make demo CASE=a|b
	@.venv/bin/lightloom demo $(CASE) --out $(OUT)

test: setup ## everything CI runs; what needs no rack runs beside what does
	@$(MAKE) --no-print-directory --jobs=2 lanes

lanes: rackless rack

rackless: # yields the processor to the rack, whose tests have hardware's patience
	@nice -n 10 $(call LANE,check unit stories fuzz contract web,rackless)

rack: # these use the machine's own rack, one after the other
	@$(call LANE,integration training roce,rack)

check: lint types layers ## ruff, mypy strict, import-linter

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types:
	.venv/bin/mypy base scheduler measure checkpoints probe recorder sitefile ocs_driver container_mgr pki controller console testbed

layers:
	.venv/bin/lint-imports

unit: ## no root, no network, in virtual time
	$(PYTEST_ALONE) tests/unit -n $(WORKERS) --durations 25

stories: ## many things at once, in an order that a seed draws
	TMPDIR=$(FILES) $(PYTEST_ALONE) tests/stories -n $(WORKERS)

explore: ## property tests with new random examples, and ten thousand random scenarios (hours)
	LIGHTLOOM_EXPLORE=1 LIGHTLOOM_STORIES=$(STORIES) $(PYTEST_ALONE) tests/unit tests/stories tests/contract -n $(WORKERS) --timeout 36000

fuzz: ## coverage-guided fuzzing of the codecs, bounded to seconds
	$(PYTEST_ALONE) tests/fuzz

contract: ## one suite per interface, every implementation
	$(PYTEST_ALONE) tests/contract -n $(WORKERS)

web: ## the console in Chromium, over a controller with fakes
	$(PYTEST_ALONE) tests/web

integration: ## root: Open vSwitch, the emulated optical switch, Docker Engine
	$(PY) -m pytest tests/integration -q -m "not training and not roce" --durations 40

racks: ## root: the same, RACKS racks side by side, each in a lane of its own
	$(PY) -m tests.lanes -n $(RACKS)

training: ## root: a real training with a live regroup
	$(PY) -m pytest tests/integration -q -m training

roce: setup ## root: RoCEv2 between QEMU guests over the rack, before and after a regroup
	$(PY) -m testbed.roce.setup
	$(PY) -m pytest tests/integration -q -m roce

torch-image: setup ## the container image with PyTorch, for CPUs
	$(PY) -m testbed.setup.image torch

protos: ## regenerate the gRPC code
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/agent.proto
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. protos/profiler.proto

lock: ## refresh the locks from setup.cfg: all for development, and what a site needs
	$(PY) -m piptools compile -q --upgrade --extra testbed --extra dev --generate-hashes --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras \
	  -o requirements.lock setup.cfg
	$(PY) -m piptools compile -q --constraint requirements.lock --generate-hashes --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras \
	  -o requirements-site.lock setup.cfg

dist: ## a wheel with all that a site needs, and the locked packages that it needs (offline)
	rm -rf dist build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(PY) -m build --quiet --wheel --no-isolation
	cp requirements-site.lock dist/
	rm -rf build lightloom.egg-info

clean: ## take the rack down and remove build products (keeps caches in /var/lib/lightloom)
	-@test -x .venv/bin/lightloom && .venv/bin/lightloom testbed down
	-@test -x .venv/bin/lightloom && for name in $$(.venv/bin/lightloom testbed list -o name); do \
	  .venv/bin/lightloom testbed down --name $$name; done
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist *.egg-info $(OUT)
