# `make` lists the targets. Everything runs in .venv, which `make` makes by itself.
PYTHON ?= python3
# More arguments for pytest, for example: make test PYTEST_ARGS="-n 4 -k fencing"
PYTEST_ARGS ?=
# Some of the mistakes only, for example: make mutants MUTANTS="rescue retry"
MUTANTS ?=
# Some of the systems only, for example: make bench-peers SYSTEMS="raw duetime"
SYSTEMS ?=
# How often the primary is killed, for example: make cluster KILLS=2
KILLS ?=
# Keep the dashboard of the demo up until Ctrl-C: make demo STAY=1
STAY ?=

BIN := .venv/bin
CORE := .venv/.core
DEV := .venv/.dev
PYTEST := $(BIN)/python -m pytest

# The tests start hundreds of commands: none should compile our code again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo fast test check format bench bench-full bench-peers chaos cluster mutants docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(CORE) ## Jobs, reminders and a dashboard, on SQLite, in under a minute (STAY=1: until Ctrl-C)
	@$(BIN)/python examples/demo.py $(if $(STAY),--stay)

fast: $(DEV) ## Run the unit tests, and the conformance suite on SQLite
	@$(PYTEST) tests/unit tests/conformance -n 3 --dist worksteal \
		-k "not postgres15 and not postgres18 and not on_postgres" $(PYTEST_ARGS)

# Three processes, which often wait.
test: check ## Check, then run every test but the chaos, on SQLite and two versions of PostgreSQL
	@$(BIN)/python -m tests.setup_servers
	@$(PYTEST) -m "not chaos" -n 3 --dist worksteal $(PYTEST_ARGS)

check: $(DEV) ## Formatting, lint, types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV) ## Format the code and mend what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV) ## Measure against hand-written SQL; writes bench/results.json
	@$(BIN)/python -m tests.setup_servers
	@$(BIN)/python -m bench

bench-full: $(DEV) ## The same, with what takes longer, and the comparison with other systems
	@$(BIN)/python -m tests.setup_servers
	@$(BIN)/python -m bench --full
	@$(BIN)/python -m bench.peers $(SYSTEMS)

bench-peers: $(DEV) ## Compare with other systems; renews docs/benchmarks
	@$(BIN)/python -m tests.setup_servers
	@$(BIN)/python -m bench.peers $(SYSTEMS)

chaos: $(DEV) ## Kill workers and databases under load
	@$(BIN)/python -m tests.setup_servers
	@$(PYTEST) -m chaos $(PYTEST_ARGS)

cluster: $(DEV) ## Kill the primary of three PostgreSQL nodes ten times, under load
	@$(BIN)/python -m tests.setup_servers
	@$(BIN)/python -m tests.chaos.cluster_campaigns $(if $(KILLS),--kills $(KILLS))

mutants: $(DEV) ## Plant known mistakes in a copy of the code; each must be caught
	@$(BIN)/python -m tests.setup_servers
	@$(BIN)/python -m tests.mutants.runner $(MUTANTS)

docs: $(DEV) ## Build the manual into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The manual: site/index.html"

setup: $(DEV) ## Make the environment for development

lock: $(DEV) ## Renew uv.lock, from the public index only
	@env -u UV_DEFAULT_INDEX -u UV_INDEX_URL -u UV_INDEX -u UV_EXTRA_INDEX_URL \
		$(BIN)/uv lock --upgrade --no-config

clean: ## Remove the environment and everything built
	@rm -rf .venv site dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .peers

$(CORE): pyproject.toml uv.lock
	@PYTHON=$(PYTHON) scripts/setup.sh core
	@touch $@

$(DEV): pyproject.toml uv.lock
	@PYTHON=$(PYTHON) scripts/setup.sh dev
	@touch $@ $(CORE)
