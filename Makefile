# Two commands: `make smoke` (build .venv, then one canary session) and `make test`.
SHELL := /bin/bash
PY ?= python3
V := .venv
READY := $(V)/.ready
export OMP_NUM_THREADS ?= 1
FULL :=                    # --full: test-full's
# Where it is set, each of the hundred processes that tests start would compile our code anew.
unexport PYTHONDONTWRITEBYTECODE

# MLflow looks for a project's environment in a cache of its own; LINKED: it holds a link to ours.
LINKED = [ "$$(readlink -f "$$(cat $(V)/.mlflow-env 2>/dev/null)" 2>/dev/null)" = "$$(readlink -f $(V))" ]

smoke: $(READY)            ## one smoke session of the default canary, gated against the champion
	@$(LINKED) || $(V)/bin/python -m canary_mlflow.link_env
	. $(V)/bin/activate && mlflow run . -P tier=smoke

test: style                ## style, and then beside each other the types and the tests, three files at a time
	@$(MAKE) --no-print-directory -j 2 types pytest

test-full: style           ## the same with simulations, every fault on every algorithm, races and crashes at full size
	@$(MAKE) --no-print-directory -j 2 types pytest FULL=--full

lint: style types          ## style and types

style: $(READY)
	$(V)/bin/ruff check .
	$(V)/bin/ruff format --check .
	bash -n .ci/run

types: $(READY)
	$(V)/bin/mypy

pytest: $(READY)
	$(V)/bin/python -m pytest tests -n 3 --dist loadscope --no-loadscope-reorder $(FULL)

bench: $(READY) .oracle/.ready   ## the benchmarks, each with a table and one JSON line
	$(V)/bin/python benchmarks/ppo_vs_trl.py
	$(V)/bin/python benchmarks/ppo_learns.py
	$(V)/bin/python benchmarks/smoke.py --sessions 3
	$(V)/bin/python benchmarks/overhead.py steps

size: $(READY)             ## how large the product is: lines, modules, chains of imports, constants
	@$(V)/bin/python benchmarks/size.py

docs: $(READY)             ## the pages that are made from the code, and the tables that are made by tests
	$(V)/bin/python docs/generate.py
	$(V)/bin/python -m pytest -q tests/canary_mlflow/test_guard_attacks.py --write-docs

site: .site/.ready         ## the documentation as a site, in site/, with demo/ if it is there: python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 .site/bin/mkdocs build --strict

demo: $(READY)             ## a folder of real pages to look around in, in demo/: python -m http.server -d demo
	$(V)/bin/python docs/demo.py

.site/.ready: pyproject.toml
	@$(PY) -m venv --clear .site
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' | \
	  .site/bin/python -m pip install -q --disable-pip-version-check -r /dev/stdin
	@touch $@

pictures: $(READY)         ## the pictures of docs/pages.md and docs/reports.md; needs Chromium
	$(V)/bin/python docs/pictures.py
	$(V)/bin/python docs/pictures_mlflow.py

oracle: .oracle/.ready     ## trl 1.12.0, the last with a PPOTrainer, in a folder of its own

.oracle/.ready: $(READY)
	$(V)/bin/python -m pip install -q --no-deps --target .oracle trl==1.12.0
	touch $@

peers: $(READY)            ## wandb and trackio, which benchmarks/overhead.py measures beside, in a folder of their own
	$(V)/bin/python -m pip install -q --target .peers wandb trackio

$(READY): requirements.txt python_env.yaml pyproject.toml
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PY) --version) found; Python 3.11 or later expected; set PY=python3.11"; exit 1; }
	@$(PY) -m venv --clear $(V) || \
	  { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@# A pip for each core, for all is pinned; one that resolves where that is not all, as beside a torch for CUDA. Not
	@# compiled: three files in four are never loaded, and whoever loads one first compiles it.
	@{ sed '/^#/d' requirements.txt; echo 'setuptools>=77'; } | tac | \
	  xargs -d '\n' -n 48 -P "$$(nproc)" $(V)/bin/python -m pip install -q --no-compile --no-deps
	@$(V)/bin/python -m pip check > /dev/null || $(V)/bin/python -m pip install -q --no-compile -r requirements.txt
	$(V)/bin/python -m pip install -q --no-deps --no-build-isolation -e .   # the pins have what builds it
	$(V)/bin/python -m canary_mlflow.link_env
	@touch $@

help:                      ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*##/ -/'

.PHONY: smoke test test-full lint style types pytest bench docs site demo pictures oracle peers help
