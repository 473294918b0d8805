# Two commands for a newcomer: `make demo` and `make test`. Each does all the set-up it needs.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# The version that the project is tested with; on a machine with a GPU, install the build you want first (see README).
TORCH ?= torch==2.13.0

# Most modules of torch and Ray are never imported, and need not be compiled; the others are compiled once, torch's while
# the rest is installed, where an environment that forbids to keep that would have every process of the tests do it again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# One process more than there are cores, as some tests wait for programs that they start. Files stay whole, as their tests
# share what is slow to make.
PROCESSES = $(shell $(BIN)/python -c 'import os; print(min(8, os.cpu_count() + 1))')
PARALLEL = --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-notebooks test-real test-gpu test-engines test-speculators test-recipe test-faults test-families test-fast lint types figures docs setup clean

setup: $(VENV)/.installed

$(VENV)/.demo: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "draftgauge needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(BIN)/python -W ignore -c 'import torch' & $(INSTALL) --editable '.[models,quant,report]'; installed=$$?; wait; exit $$installed
	$(BIN)/python -c 'import draftgauge.api.demo'
	touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(INSTALL) --editable '.[test]'
	touch $@

$(VENV)/.linters: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/draftgauge demo --out demo --json demo/demo.json

# The whole suite, in several processes; of ARGS (make test ARGS=tests/core/test_seeds.py) one process runs what they name.
test: setup
	$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL))

# The notebooks of docs/, run anew into build/notebooks: SpecKV's where its author's records are (SPECKV=FOLDER).
SPECKV ?=
NOTEBOOKS = $(filter-out $(if $(wildcard $(SPECKV)),,%/speckv-data.ipynb),$(wildcard docs/notebooks/*.ipynb))
test-notebooks: setup
	$(INSTALL) --editable '.[notebooks]'
	test -n "$(wildcard $(SPECKV))" || echo "speckv-data.ipynb is skipped: no folder with the records of SpecKV's author; name it: make test-notebooks SPECKV=FOLDER"
	DRAFTGAUGE_SPECKV=$(abspath $(SPECKV)) $(BIN)/python -m nbconvert --to notebook --execute --output-dir build/notebooks $(NOTEBOOKS)

# The whole path on this machine's GPU, which the other tests do not see: they are the same on every machine.
test-gpu: setup
	DRAFTGAUGE_TEST_DEVICE=cuda $(BIN)/python -m pytest -rs tests/devices tests/drafters/test_reuse_attention.py

# Published models through every verb that takes one; REAL_MODELS=FOLDER names where they are, else they are skipped.
test-real: setup
	DRAFTGAUGE_REAL_MODELS=$(REAL_MODELS) $(BIN)/python -m pytest -rs -s tests/real

# vLLM in an environment of its own below .engines, and llama.cpp's converter: installed once, then only tested.
test-engines: setup
	$(BIN)/python tools/engines.py set-up
	eval "$$($(BIN)/python tools/engines.py environment)" && DRAFTGAUGE_ENGINES=whole $(BIN)/python -m pytest -rs tests/engines tests/models/test_gguf_engine.py

# Drafters in public formats against the forward of speculators, in an environment of its own.
test-speculators: setup
	$(BIN)/python tools/engines.py set-up --only speculators
	DRAFTGAUGE_SPECULATORS_PYTHON=.engines/speculators/bin/python $(BIN)/python -m pytest -rs tests/drafters/test_checkpoints.py

# The recipe of the bundled pair, among it end to end at a 2,000th of its length: some minutes.
test-recipe: setup
	$(BIN)/python -m pytest $(PARALLEL) recipes

# Damaged, swapped and killed artefacts, full disks, hostile servers: tests/faults whole; and what Ray runs. Some minutes.
test-faults: setup
	DRAFTGAUGE_FAULTS=whole $(BIN)/python -m pytest -rs tests/faults tests/api/test_profile_parts.py tests/studies/test_kvshot_run.py

# A tiny model of every type that transformers has, on two cores under 15 minutes; ARGS=--write keeps what is found in docs.
test-families: setup
	$(BIN)/python tests/families.py $(ARGS)

test-fast: setup
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

lint: $(VENV)/.linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/check_structure.py
	$(BIN)/python tools/check_prose.py
	$(BIN)/python tools/make_stub.py --check

types: $(VENV)/.linters
	$(BIN)/mypy

# The tables of README and docs, recomputed without a model from the published run and rows.
figures: setup
	$(BIN)/python benchmarks/real_pair.py judge
	$(BIN)/python benchmarks/figures.py

# The site of docs/, with two reports of the published runs, into build/site.
docs: setup
	$(INSTALL) --editable '.[docs]'
	for run in bf16 nf4; do $(BIN)/draftgauge report docs/results/real/runs/$$run --title "Qwen2.5-Coder 1.5B with 0.5B, $$run" --out docs/gallery/$$run.html || exit 1; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
