# `make` lists the targets. Each sets up what it needs: a virtual environment in .venv, by uv where it is on the PATH,
# otherwise by `python3 -m venv` and pip. UV= (empty) chooses pip; PYTHON=python3.12 chooses the interpreter.
PYTHON ?= python3
VENV   ?= .venv
UV     ?= $(shell command -v uv 2>/dev/null)
TORCH  ?= torch
ARGS   ?=
BIN    := $(VENV)/bin
export UV
# Installation compiles no bytecode (it would be a quarter of .venv); what is used is compiled at its first use.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(UV),)
install := $(BIN)/python -m pip install --quiet --disable-pip-version-check
else
install := $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo validation sarathi-pipeline schedulers disaggregation test lint format wheel gpu setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## compare three policies on the bundled trace; everything lands in results/demo
	@$(BIN)/simulate-trace --out results/demo --force $(ARGS)
	@echo "Open results/demo/report.html in a browser for the whole comparison."

validation: $(VENV)/.installed-dev ## simulate the measured runs again and write results/validation, how accurate it is
	@$(BIN)/python -m simulator.compare.validate $(sort $(dir $(wildcard results/validation/measured/*/run.json))) --hold-runs-out --out results/validation --force

sarathi-pipeline: $(VENV)/.installed ## run SARATHI's pipeline experiment again and write results/sarathi-pipeline, in some minutes
	@$(BIN)/python -m simulator.reproduce results/sarathi-pipeline $(ARGS)

schedulers: $(VENV)/.installed ## run every scheduler on the bundled trace and write the measured table of docs/schedulers.md
	@$(BIN)/simulate-trace policies/all.yaml --out results/all --force $(ARGS)
	@$(BIN)/python bench/schedulers_table.py results/all

disaggregation: $(VENV)/.installed ## run chunked prefill against disaggregation over loads again and write results/disaggregation, in some minutes
	@$(BIN)/python -m simulator.reproduce.loads results/disaggregation $(ARGS)

test: $(VENV)/.installed-dev ## run the tests (ARGS="-k trace" chooses some)
	@$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadscope $(ARGS)

lint: $(VENV)/.installed-dev ## ruff check, ruff format --check, mypy
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted as ruff does it: make format"; exit 1; }
	@$(BIN)/mypy

format: $(VENV)/.installed-dev ## let ruff format the code and mend what it can
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

wheel: $(VENV)/.installed-dev ## build the wheel and the sdist into dist
	@$(BIN)/python -m build $(if $(UV),--installer uv) --outdir dist .

gpu: $(VENV)/.installed ## install PyTorch and flash-attn for profile-gpu (MAX_JOBS=4 limits a compilation's memory)
	@echo "installing $(TORCH) and what flash-attn needs to build"
	@$(install) $(TORCH) packaging ninja psutil setuptools wheel
	@echo "installing flash-attn; without a prebuilt wheel for this PyTorch and CUDA it compiles, which can take an hour"
	@$(install) --no-build-isolation 'flash-attn>=2.7'
	@$(install) -e '.[gpu,calibrate]'
	@$(BIN)/python -c 'import torch; print("PyTorch", torch.__version__, "sees", torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")'

setup: $(VENV)/.installed-dev ## only set up .venv, with what tests and lint need

clean: ## remove .venv, build results and results/demo
	rm -rf .venv build dist results/demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.*' -prune -exec rm -rf {} +

$(BIN)/python:
ifeq ($(UV),)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Chunkwise needs Python 3.11 or newer. $(PYTHON) is: $$($(PYTHON) --version 2>&1). Another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
else
	@echo "setting up $(VENV) with uv"
	@$(UV) venv --quiet --allow-existing $(if $(filter-out python3,$(PYTHON)),--python $(PYTHON)) $(VENV)
endif

# An environment that uv made has no pip.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
ifeq ($(UV),)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null
endif
	@echo "installing Chunkwise and what it needs"
	@$(install) -e .
	@$(BIN)/python -m compileall -q simulator policies profiler # an editable install leaves them to the first run
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what tests and lint need"
	@$(install) -e '.[dev]'
	@touch $@
