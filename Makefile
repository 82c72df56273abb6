# Two commands do everything on a fresh machine with Python 3.11+ and pip: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PEERS ?= build/peers
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tests run in two processes; each is told to use one thread, so that they do not fight.
WORKERS ?= 2

.PHONY: demo test fuzz check format constraints bench-peers clean

demo: $(VENV)/.demo ## make data, train on it, measure the policy beside reference controllers
	$(BIN)/moose demo

test: $(VENV)/.dev ## the whole test suite
	NPROC=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_FLAGS)

# Eight tests that draw cases at random, this many each; the usual number is in tests/toolbox.
FUZZ_CASES ?= 1500

fuzz: $(VENV)/.dev ## every reader and the formulas against more than 10,000 odd inputs
	NPROC=1 MOOSE_FUZZ_CASES=$(FUZZ_CASES) $(BIN)/python -m pytest -n $(WORKERS) -q -k \
	  "only_our_error_escapes or read_or_refused or text_and_tree_are_the_same" tests/data tests/tasks

check: $(VENV)/.dev ## linter, formatter, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(VENV)/.dev ## let the tools mend what they can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Takes the environment as it is: built with the old constraints it would only repeat them. For newer
# versions: make clean, empty constraints.txt, make test, make constraints.
constraints: ## record the exact versions of this environment
	$(PIP) list --format=freeze --exclude-editable > $(VENV)/installed.txt
	grep -vE '^(pip|setuptools|moose-rl|torch)==' $(VENV)/installed.txt > constraints.txt

# d3rlpy pins what we do not, so that it lives in an environment of its own.
bench-peers: $(VENV)/.dev $(PEERS)/.ready ## gradient steps a second against d3rlpy
	$(BIN)/python benchmarks/baselines.py --peers $(PEERS)/bin/python $(BENCH_FLAGS)

$(PEERS)/.ready:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install -q d3rlpy==2.8.1 torch==2.13.0
	@touch $@

clean: ## forget the virtual environment and the caches
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say which: make PYTHON=python3.13 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.python
	$(PIP) install -q -c constraints.txt -e '.[plot]'
	@touch $@

# The oracle simulator declares a dependency on a package it only needs for a wrapper we do not use.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	$(PIP) install -q -c constraints.txt -e '.[all,dev]'
	$(PIP) install -q -c constraints.txt --no-deps industrial-benchmark-python
	@touch $@ $(VENV)/.demo
