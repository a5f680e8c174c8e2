# `make help` lists the targets. Everything runs in .venv, with the exact versions of requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUDIES := $(notdir $(basename $(wildcard ablations/*.yaml)))
SCALE ?= minatar
RESULTS ?= ablations/results/$(STUDY)

.DEFAULT_GOAL := help
.PHONY: help setup run reproduce test integration lint format bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## make .venv with the pinned versions

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "meanq needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

run: $(READY) ## a first effect in a few minutes: does DQN overestimate without a target network, and MeanQ?
	@$(MAKE) --no-print-directory reproduce STUDY=first_look RESULTS=results/first_look
	@echo "Open results/first_look/figures/study.svg in a browser; README.md says what to see in it and what to try next."

reproduce: $(READY) ## STUDY=target_network [SCALE=minatar]: run a study, keep its tables and figures in ablations/results
	@test -n "$(STUDY)" || { echo "which study? make reproduce STUDY=... with one of: $(STUDIES)"; exit 1; }
	$(BIN)/python -m meanq.run -m +study=$(STUDY) scale=$(SCALE) hydra/launcher=local
	$(BIN)/python -m analysis.results runs/$(STUDY) --scale $(SCALE) --out $(RESULTS)

test: $(READY) ## every test but the slow ones in tests/integration
	$(BIN)/python -m pytest -n auto --ignore tests/integration

integration: $(READY) ## slower tests: whole runs in processes of their own; a real SLURM and a browser where they are installed
	$(BIN)/python -m pytest -n auto --dist loadgroup tests/integration

lint: $(READY) ## ruff (style, format) and mypy (types)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## speed against its goals (benchmarks/results.json has it, too), the cost of checkpoints and of a report
	$(BIN)/python -m benchmarks.goals
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.report

lock: ## renew requirements.lock from the ranges in pyproject.toml
	./scripts/lock $(PYTHON)

clean: ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
