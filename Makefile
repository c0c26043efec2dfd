# Two commands do all the set-up: `make demo` and `make test`. Both need Python 3.11+ and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_DIR ?= .affidavit/demo

.PHONY: demo test test-code test-system lint types check bench clean

demo: $(VENV)/.embedded
	$(BIN)/affidavit demo --data-dir $(DEMO_DIR)

# Most tests wait, for a server, a worker or a clock; so two halves run beside each other, each with servers of its own.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target test-code test-system

test-code: $(VENV)/.dev
	$(BIN)/pytest tests/unit tests/workflow

test-system: $(VENV)/.dev
	$(BIN)/pytest --ignore=tests/unit --ignore=tests/workflow

# Half an hour on an idle machine; `make bench PAIRS=1` shows the shape of it in a few minutes.
PAIRS ?= 5
bench: $(VENV)/.dev
	$(BIN)/python -P -m benchmarks --pairs $(PAIRS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test

# The pip of an old Python knows no dependency groups.
$(VENV)/.pip: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Affidavit needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	@touch $@

$(VENV)/.embedded: $(VENV)/.pip pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/.embedded
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev
	@touch $@

clean:
	rm -rf $(VENV) .affidavit .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
