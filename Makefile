# Two commands for a newcomer: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
HOURS  ?= 2
DATA   ?= data

# Their processes end with gigabytes of memory, which the rest of the suite would lack.
HUNGRY := tests/contracts tests/deploy tests/device

.PHONY: demo test check lint types imports docs tests evidence bench gpu clean

demo: $(VENV)/.installed
	$(BIN)/simsplit run scenarios/quickstart.yaml

test: check                       ## everything that CI runs

check: lint types imports docs tests

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

imports: $(VENV)/.tested
	$(BIN)/lint-imports

docs: $(VENV)/.tested             ## parts of pages that are made from results/, and the documentation site in site/
	$(BIN)/python docs/made_blocks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

tests: $(VENV)/.tested            ## the whole suite, slow tests included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "" -q --durations=10 $(HUNGRY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "" -q --durations=10 $(HUNGRY:%=--ignore=%)

evidence: $(VENV)/.installed      ## measures what papers' tables lack: make evidence HOURS=8 DATA=/where/data/lie
	$(BIN)/simsplit reproduce --missing --budget $(HOURS)h --data $(DATA)

bench: $(VENV)/.installed
	$(BIN)/simsplit bench

gpu: $(VENV)/.installed           ## what is worth measuring on a GPU, into results/gpu/; without one, the list of it
	$(BIN)/python tools/gpu.py

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
