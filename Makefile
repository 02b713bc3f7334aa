# Few verbs. `make demo` and `make test` work on a fresh checkout with only Python >= 3.11 and make.

PYTHON ?= python3
BIN := .venv/bin
SOAK_MINUTES ?= 10
PYTEST_ARGS ?=
SUITE_ARGS ?=
DRILL_ARGS ?=
SITE ?= site
SEEDS ?= 500
SEED ?=
FOLDER ?=

.PHONY: help setup demo test lint format check test-slow simulate soak bench count sdk-suite spark-matrix docs requirements clean

help:
	@echo "make demo       an outage rehearsed, offline: pairbus drill, DRILL_ARGS=\"--fault kill\" for another"
	@echo "make test       lint, types, the test suite"
	@echo "make check      lint, types and tests of one folder of src/pairbus: FOLDER=pairing, FOLDER=broker/model"
	@echo "make test-slow  the slower proofs that CI runs too"
	@echo "make simulate   the real broker in new simulated worlds: SEEDS=$(SEEDS) of them, or SEED=n to replay one"
	@echo "make soak       long fault runs, SOAK_MINUTES=$(SOAK_MINUTES)"
	@echo "make bench      side-by-side benchmarks, writes benchmarks/results.json"
	@echo "make count      lines of code, without docstrings, comments and generated files"
	@echo "make sdk-suite  the official SDK's own tests against the broker, SUITE_ARGS=\"--only test_topic\" for some"
	@echo "make spark-matrix  the connector on the oldest and the newest supported Spark"
	@echo "make docs       the documentation as a site that can be read offline: $(SITE)/index.html"
	@echo "make setup      only .venv; then .venv/bin/pairbus and .venv/bin/python work"
	@echo "make format     generates the sync clients from the async ones, rewrites the code in the house's format"

setup: .venv/.ready

.venv/.ready: requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pairbus needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up .venv, once" >&2
	@$(PYTHON) -m venv .venv || \
	  { echo "$(PYTHON) can't make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@$(BIN)/pairbus drill $(DRILL_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# More workers than the two cores of the machine that it must pass on: many tests wait for time-outs. A file stays on one
# of them, with its broker (tests/conftest.py).
test: lint
	$(BIN)/python -m pytest -m "not slow and not soak" -n 6 --dist loadfile --max-worker-restart 1 $(PYTEST_ARGS)

CHECKED = $(wildcard src/pairbus/$(FOLDER)) tests/$(FOLDER)
check: setup
	@test -d "tests/$(FOLDER)" -a -n "$(FOLDER)" || \
	  { echo "which folder of src/pairbus? make check FOLDER=pairing, or FOLDER=broker/model" >&2; exit 1; }
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(CHECKED)
	$(BIN)/python -m pytest -m "not slow and not soak" -n 4 --dist loadfile --max-worker-restart 1 $(PYTEST_ARGS) tests/$(FOLDER)

test-slow: setup
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --max-worker-restart 1 $(PYTEST_ARGS)

simulate: setup
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

soak: setup
	SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m pytest -m soak --timeout 0 $(PYTEST_ARGS)

bench: setup
	$(BIN)/python -m benchmarks

count: setup
	@$(BIN)/python -m benchmarks.count

sdk-suite: setup
	@$(BIN)/python -m tests.sdk_suite $(SUITE_ARGS)

spark-matrix: setup
	@$(BIN)/python -m tests.spark_matrix

# Sphinx has an environment of its own, so that nothing that is tested depends on it. What .buildinfo marks is a site of
# Sphinx's, and may be replaced; pages that are gone would stay in it.
docs: .venv/docs/.ready
	@if [ -f "$(SITE)/.buildinfo" ]; then rm -rf "$(SITE)"; fi
	@.venv/docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --jobs auto \
	  --conf-dir docs --doctree-dir .venv/docs/doctrees . "$(SITE)"
	@echo "open $(SITE)/index.html"

.venv/docs/.ready: requirements-docs.txt
	@echo "setting up .venv/docs, once" >&2
	@$(PYTHON) -m venv .venv/docs
	@.venv/docs/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@touch $@

format: setup
	$(BIN)/python scripts/generate_sync.py
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# For maintainers, after a change of the dependencies in pyproject.toml or requirements-docs.in. The files name no index.
COMPILE := CUSTOM_COMPILE_COMMAND="make requirements" .venv/tools/bin/pip-compile --quiet --generate-hashes \
  --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host
requirements: setup
	@test -x .venv/tools/bin/pip-compile || { $(PYTHON) -m venv .venv/tools && .venv/tools/bin/pip install --quiet pip-tools; }
	$(COMPILE) -o requirements.txt pyproject.toml
	$(COMPILE) --extra dev -o requirements-dev.txt pyproject.toml
	$(COMPILE) -o requirements-docs.txt requirements-docs.in
	for each in tests/broker/clients/*.in; do $(COMPILE) -o $${each%.in}.txt $$each || exit 1; done

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis site
