# Every target sets up what it needs from a bare python3; a second call installs nothing again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export PYTHONUNBUFFERED := 1

.PHONY: help setup demo test test-slow test-gpu fuzz check format clean

help:
	@echo "make demo    train digits on four local devices, one slow, one killed in the middle"
	@echo "make test    every test that needs no GPU and no minutes"
	@echo "make fuzz    the properties with examples nobody has tried yet"
	@echo "make check   format, lint, types, storeys"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

demo: $(READY)
	$(BIN)/fedgc demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 -m 'not contract and not slow and not gpu'
	$(BIN)/python -m pytest -q -m 'contract and not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

fuzz: $(READY)
	$(BIN)/python -m pytest -q -n 2 -m 'not contract and not slow and not gpu' --hypothesis-profile search

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
