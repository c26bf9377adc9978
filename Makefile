# Two commands for a newcomer: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
HOURS  ?= 2
DATA   ?= data
VERSION ?= 0.1.0

# From 64 KB on, glibc then gives back what is freed. By itself it moves that size up to 32 MB, and what many threads
# free stays with the process, in pieces.
PYTEST := OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=65536 $(BIN)/python -m pytest -q --durations=10

.PHONY: demo test test-all check lint types imports docs tests evidence bench gpu gallery release clean

demo: $(VENV)/.installed
	$(BIN)/simsplit run scenarios/quickstart.yaml

test: check                       ## what to run before a change goes out, within ten minutes

check: lint types imports docs tests

test-all: $(VENV)/.tested         ## every test; SUITE=rest: those alone that `make test` leaves out, which CI runs after it
	$(PYTEST) -m "" --suite $(or $(SUITE),whole)

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

tests: $(VENV)/.tested            ## of dear tests a part that the commit chooses (tests/suites.py)
	$(PYTEST) -m "" --suite usual

evidence: $(VENV)/.installed      ## measures what papers' tables lack: make evidence HOURS=8 DATA=/where/data/lie
	$(BIN)/simsplit reproduce --missing --budget $(HOURS)h --data $(DATA)

bench: $(VENV)/.installed
	$(BIN)/python tools/bench.py

gpu:                              ## what is worth measuring on a GPU, into results/gpu/; without one, the list of it
	PYTHONPATH=$(CURDIR) $(if $(wildcard $(VENV)/.installed),$(BIN)/python,$(PYTHON)) tools/gpu.py

gallery: $(VENV)/.installed       ## runs scenarios and draws their results: make gallery SCENARIOS="vertical table"
	$(BIN)/python docs/pictures.py $(SCENARIOS)

release: $(VENV)/.installed       ## rehearses a release in a clone of its own: make release VERSION=0.1.0
	$(BIN)/python -m pip install --quiet --editable ".[release]"
	$(BIN)/python tools/release.py $(VERSION) --dry-run

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
