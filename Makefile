# Two commands do everything on a new Debian 12 / Ubuntu 24.04 machine, as root:
#   make demo   the paper's case a on the emulated rack: table, JSON, plots
#   make test   every gate; a line says what ran in each, how long, and what failed
# Each gate is a target of its own; T chooses tests: make unit T=tests/unit/scheduler
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
CASE ?= a
OUT ?= out
STORIES ?= 10000
# Racks at a time, in lanes: they wait more than they work.
RACKS ?= $(shell echo $$(($$(nproc) + 1)))
# In virtual time tests do not wait: a worker for each core.
WORKERS ?= $(shell nproc)
# Where tests without a rack keep their files: in memory, if there are 4 GiB. A disk that the rack
# uses at the same time may not answer for ten seconds, which is a fault to the controller.
FILES ?= $(shell test "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt 4194304 \
  2>/dev/null && echo /dev/shm || echo /tmp)
# Some machines forbid it: then every program of a rack, and every worker, compiles all modules.
export PYTHONDONTWRITEBYTECODE :=
# Hashes are fixed: a story's order comes from its seed alone.
PYTEST = PYTHONHASHSEED=0 TMPDIR=$(FILES) PYTEST_DEBUG_TEMPROOT=$(FILES) $(PY) -m pytest -q -rfE -o tmp_path_retention_policy=failed
# Its plugin takes 2 s of processor to load, and only the contract of the API needs it.
PLAIN = $(PYTEST) -p no:schemathesis

# The order: what fails soonest is first.
CHECKS = lint types layers unit contract stories

.PHONY: help setup demo check test soak lint types layers unit contract stories fuzz web rack explore rack-soak torch-image protos lock dist clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: ## apt packages, virtual environment, container images (idempotent, root)
	@testbed/setup/setup.sh

demo: setup ## the paper's experiment: make demo CASE=a|b
	@.venv/bin/lightloom demo $(CASE) --out $(OUT)

check: ## what a change must pass, without root or a rack: minutes
	@$(PY) -m tests.gates $(CHECKS)

test: setup ## everything CI runs; the rack's tests run beside the others
	@$(PY) -m tests.gates $(CHECKS) fuzz web rack

soak: setup ## what proves by repetition: hours
	@$(PY) -m tests.gates explore rack-soak

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types:
	.venv/bin/mypy base scheduler measure checkpoints agentlink readings probe recorder sitefile ocs_driver container_mgr pki controller console testbed

layers:
	.venv/bin/lint-imports

unit: ## no root, no network, in virtual time
	$(PLAIN) $(or $(T),tests/unit) -n $(WORKERS) --durations 20

contract: ## one suite per interface, every implementation
	$(PYTEST) $(or $(T),tests/contract) -n $(WORKERS) --durations 20

stories: ## many things at once, in an order that a seed draws
	$(PLAIN) $(or $(T),tests/stories) -n $(WORKERS)

fuzz: ## coverage-guided fuzzing of the codecs, bounded to seconds
	$(PLAIN) $(or $(T),tests/fuzz)

web: ## the console in Chromium, over a controller with fakes
	$(PLAIN) $(or $(T),tests/web) --durations 20

rack: ## root: Open vSwitch, the emulated optical switch, Docker Engine; RACKS racks side by side
	$(PY) -m tests.lanes -n $(RACKS) $(T)

explore: ## property tests with new examples, ten thousand random stories, all of the long tests
	LIGHTLOOM_EXPLORE=1 LIGHTLOOM_STORIES=$(STORIES) $(PYTEST) -m "soak or not soak" tests/unit tests/stories tests/contract -n $(WORKERS) --timeout 36000

rack-soak: ## root: what is too long for every change: each failpoint, 200 regroups, trainings, RoCE
	$(PY) -m tests.lanes -n $(RACKS) -m soak $(T)

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
