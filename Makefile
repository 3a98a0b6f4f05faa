# `make demo` and `make test` set up all they need: a virtual environment with pinned dependencies.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all test-dags lint docs bench-peers clean

demo: $(VENV)/installed  ## the whole job, offline, from a small web it serves itself
	$(BIN)/owt demo

test: $(VENV)/installed  ## the tests, without the long ones
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/installed  ## all tests
	$(BIN)/python -m pytest

lint: $(VENV)/installed  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed  ## the generated pages under docs/
	$(BIN)/python -m schemas.reference > docs/data.md

clean:  ## everything that can be made again
	rm -rf $(VENV) .venv-airflow .venv-peers demo-run

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable ".[train,dev]"
	touch $@
