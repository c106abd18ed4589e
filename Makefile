# Every target is self-contained: the first one that runs creates .venv and installs into it.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
INSTALLED := .venv/.installed
# Twice as many processes as cores: tests that start processes or lose connections mostly wait.
PYTEST_ARGS ?= -n 4
CHAOS_MINUTES ?= 5

# Tests start many processes; without compiled files each would compile everything it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo serve test test-deep collect check chaos bench bench-guard bench-report bench-peers docs clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(INSTALLED)  ## watch runs survive a crash
	$(BIN)/python -m flowfabric.demo

serve: $(INSTALLED)  ## look at the dashboard with a lively sample application
	$(BIN)/python -m flowfabric.cli demo --serve

test: $(INSTALLED)  ## run all tests, on SQLite and on a real Postgres
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-deep: $(INSTALLED)  ## also run the slow tests, and every test on every store
	$(BIN)/python -m pytest $(PYTEST_ARGS) --deep

# In a fresh clone, each process of `make test` would compile every test; whether they can be
# collected is for `make test` to say.
collect: $(INSTALLED)
	-@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1

check: $(INSTALLED)  ## check lint, format, types, samples, layers, sizes, SQL, names, prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_samples.py
	$(BIN)/lint-imports
	$(BIN)/python tools/check_size.py
	$(BIN)/python tools/check_sql.py
	$(BIN)/python tools/check_house.py
	$(BIN)/python tools/check_prose.py
	$(BIN)/python tools/scenarios.py --check

chaos: $(INSTALLED)  ## kill, freeze and cut off real workers for five minutes
	$(BIN)/python -m chaos --minutes $(CHAOS_MINUTES)

bench: $(INSTALLED)  ## measure both stores, as ratios within one run, in ten minutes
	$(BIN)/python -m bench

bench-guard: $(INSTALLED)  ## fail if a ratio has lost more than a fifth
	$(BIN)/python -m bench guard

bench-report: $(INSTALLED)  ## measure, fill in docs/performance.md, record the ratios
	$(BIN)/python -m bench --report --json bench/results/documented.json
	$(BIN)/python -m bench guard --record

bench-peers: $(INSTALLED)  ## compare with other systems: PEERS_ARGS="--help"
	$(BIN)/python -m bench.peers $(PEERS_ARGS)

docs: $(INSTALLED)  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean:  ## remove everything that was built
	rm -rf .venv .venv-peers build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f .coverage .coverage.*

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later with venv is needed" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]' -c constraints.txt
	@touch $@
