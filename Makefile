# Every target sets the environment up by itself; it is renewed when the stamp is older than these files.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest lint types docs bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## adapt the bundled backbone to handwritten digits and say where the report lies
	$(BIN)/regraft demo

test: $(STAMP)  ## the tests, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

test-slow: $(STAMP)  ## the slow tests only
	$(BIN)/python -m pytest -m slow

test-oldest:  ## the tests with the oldest versions that pyproject.toml allows (needs uv; some gigabytes)
	uv venv --allow-existing --python 3.11 .venv-oldest
	uv pip install --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev,timm]'
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -m "not slow" -n auto --dist worksteal

lint: $(STAMP)  ## style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## the type checker
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)  ## every benchmark in its quick form
	@set -e; for script in benchmarks/*.py; do \
		grep -q '__main__' $$script || continue; \
		echo "== $$script"; $(BIN)/python $$script --quick; \
	done

clean:  ## remove what the targets made, the environment included
	rm -rf $(VENV) .venv-oldest site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
