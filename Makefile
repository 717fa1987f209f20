# Everything a developer or CI does. Each target sets up what it needs, once, in .venv.
.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types test demo bench soak crashlab lock clean

PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/.runtime
DEV := .venv/.dev
# --no-deps: a lock is complete, and older pips want a hash for a name with extras that the lock has without.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCK := pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate --upgrade --quiet

help:  ## List the targets.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '  make %-8s %s\n' "$$target" "$$text"; done

setup: $(DEV)  ## Make .venv from the locks; again only when they change.

fmt: $(DEV)  ## Format the code and apply safe fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(DEV)  ## Check format and rules.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV)  ## Check types.
	$(BIN)/basedpyright --pythonpath $(BIN)/python

test: $(DEV)  ## Run the tests; ARGS="-k name" picks some.
	$(BIN)/python -m pytest $(ARGS)

demo: $(RUNTIME)  ## Start the stack and tell the story; ONCE=1 stops everything after it.
	$(BIN)/cdc-platform demo $(if $(ONCE),--once)

bench: $(DEV)  ## Measure: NAME=freshness SCALE=small.
	@test -n "$(NAME)" || { echo "Say which benchmark: make bench NAME=freshness SCALE=small" >&2; exit 2; }
	$(BIN)/python -m benchmarks.$(NAME) --scale $(or $(SCALE),small)

soak: $(DEV)  ## Commit every second beside maintenance, and count what is lost: MINUTES=60.
	@$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),60)

crashlab: $(DEV)  ## Kill and disturb capture and sink, and count what is lost: FAULTS=300 SEED=1.
	$(BIN)/python -m cdc_platform_tests.crashlab --faults $(or $(FAULTS),300) --seed $(or $(SEED),1) $(ARGS)

lock:  ## Renew the locks from pyproject.toml; needs uv.
	@test -x $(BIN)/uv || { echo "uv is missing: make setup && $(BIN)/pip install uv" >&2; exit 2; }
	@# setuptools builds the project itself, without a download at that moment.
	echo 'setuptools>=77' | $(BIN)/uv $(LOCK) -o requirements.lock pyproject.toml -
	$(BIN)/uv $(LOCK) -o requirements-dev.lock requirements.lock pyproject.toml --group dev --group bench

clean:  ## Stop the stack; remove .venv and caches. Keeps .cdc-platform, which is data.
	@if [ -x $(BIN)/cdc-platform ]; then $(BIN)/cdc-platform down; fi
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find cdc_platform cdc_platform_tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed: install it, and name it with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python's venv is missing: install it with apt-get install python3-venv" >&2; exit 2; }
	@$(PYTHON) cdc_platform/stack/jdk.py
	@# What never got to its end is begun anew.
	$(PYTHON) -m venv $(if $(wildcard $(RUNTIME)),,--clear) .venv
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-build-isolation -e .
	@touch $@

$(DEV): $(RUNTIME) requirements-dev.lock
	$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@
