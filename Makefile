# Every target sets up by itself on a fresh clone; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST_ARGS ?=
WORKERS ?= 2
CRASH ?=
ONLY ?=
FAST := architecture contract typing unit
LINT = $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/lint-imports

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A worker takes a file of tests at a time, the long ones first (tests/plugins/order.py); tests marked `alone` still run
# alone.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup run check test test-long lint spec bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

setup: $(STAMP) ## create .venv and install what the project needs (Java 17 too, when it is missing)

run: $(STAMP) ## count page views on a local Spark, live, and compare with the truth (CRASH=1: kill a worker)
	@$(BIN)/python examples/pv_count.py $(if $(CRASH),--crash)

check: $(STAMP) ## lint, and the tests that need no Spark, side by side: the inner loop, 3 minutes
	@said="$$(mktemp)"
	set -m  # a group of its own, so that it can be ended as a whole
	{ $(LINT); } >"$$said" 2>&1 &
	lint=$$!
	set +m
	trap 'kill -- -$$lint 2>/dev/null || true; rm -f "$$said"' EXIT
	code=0
	$(PYTEST) -q -m "not long" $(addprefix tests/,$(FAST)) $(PYTEST_ARGS) || code=$$?
	if [ $$code -eq 2 ]; then exit 2; fi  # interrupted
	wait $$lint || code=$$?
	cat "$$said"
	exit $$code

test: $(STAMP) ## run all tests but the long ones (PYTEST_ARGS="-k name" to choose, WORKERS=0: one process, SEED_BASE=n: other seeds)
	@$(PYTEST) -m "not long" $(PYTEST_ARGS)

test-long: $(STAMP) ## run the long tests (SEEDS=20000: so many of the simulation)
	@SEEDS="$(SEEDS)" $(BIN)/python -m pytest -m long $(PYTEST_ARGS)

lint: $(STAMP) ## check style, format, types and the direction of imports
	@$(LINT)

spec: $(STAMP) ## run the tests of the specification and list its rows, shown and not shown
	@$(PYTEST) -q -m spec --spec-report $(PYTEST_ARGS)

bench: $(STAMP) ## measure beside the peers (ONLY=tidegate: ours alone)
	@$(BIN)/python benchmarks/run.py $(if $(ONLY),--only $(ONLY))

clean: ## remove what the other targets made, .venv too
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
	    spark-warehouse metastore_db derby.log out benchmarks/.data benchmarks/.envs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Written last, so that a set-up that broke half-way is done again.
$(STAMP): pyproject.toml constraints.txt
	@as_root() {
	    if [ "$$(id -u)" -eq 0 ]; then "$$@"
	    elif command -v sudo >/dev/null; then sudo "$$@"
	    else return 1; fi
	}
	install_package() {  # the package, and what it is needed for
	    echo "$$2 is missing: installing $$1"
	    command -v apt-get >/dev/null && as_root apt-get update -qq \
	        && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$1" \
	        || { echo "Cannot install $$1. Install $$2 yourself, then run make again." >&2; exit 1; }
	}
	java_major() {
	    local java=java
	    if [ -n "$${JAVA_HOME:-}" ]; then java="$$JAVA_HOME/bin/java"; fi
	    { "$$java" -version 2>&1 || true; } | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1
	}
	version="$$(java_major)"
	if [ "$${version:-0}" -lt 17 ]; then
	    install_package openjdk-17-jre-headless "Java 17"
	    version="$$(java_major)"
	    if [ "$${version:-0}" -lt 17 ]; then
	        echo "The java found is version '$${version:-none}', Spark 4 needs 17 or newer. Set JAVA_HOME, then run make again." >&2
	        exit 1
	    fi
	fi
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
	    echo "$(PYTHON) is missing or older than 3.11. Run make with PYTHON=<a newer one>." >&2
	    exit 1
	fi
	echo "setting up $(VENV), about a minute"
	if [ ! -x $(BIN)/python ]; then
	    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || install_package python3-venv "Python's venv module"
	    $(PYTHON) -m venv $(VENV)
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,connect]'
	touch $@
