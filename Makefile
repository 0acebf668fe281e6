# Two commands: `make demo` shows phasegate at work, `make test` checks it. Both make their own venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint types unit clean

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/core
	$(BIN)/phasegate simulate --profile rtx-pro-6000/qwen3-8b \
	    --workload 'prompt=512,output=512,prompt_dist=lognormal:1,output_dist=geometric' \
	    --concurrency 512 --requests 4000 --n 512 \
	    --policy static --policy mixed --policy exclusive:k=1 --policy threshold --policy hybrid \
	    --html out/demo.html

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
