# `make help` lists the targets. Everything runs in .venv with the exact versions of requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUDIES := $(notdir $(basename $(wildcard ablations/*.yaml)))
# STUDY is a study of ablations/ or the path of a file; a study with one scale needs no SCALE.
SCALE ?= $(shell grep -qs '^  minatar:' 'ablations/$(STUDY).yaml' && echo minatar)
NAME = $(notdir $(basename $(filter %.yaml %.yml,$(STUDY))))
RESULTS ?= $(if $(NAME),results/$(NAME),ablations/results/$(STUDY))

.DEFAULT_GOAL := help
.PHONY: help setup run reproduce test integration lint format bench docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## create .venv with the pinned versions

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "meanq needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

run: $(READY) ## a first result in a few minutes: do DQN and MeanQ overestimate without a target network?
	@$(MAKE) --no-print-directory reproduce STUDY=first_look RESULTS=results/first_look
	@echo "Open results/first_look/figures/study.svg in a browser; README.md explains it and suggests what to try next."

reproduce: $(READY) ## STUDY=target_network or a file's path [SCALE=minatar]: run a study, write its tables and figures
	@test -n "$(STUDY)" || { echo "which study? make reproduce STUDY=... with one of: $(STUDIES)"; exit 1; }
	$(BIN)/python -m meanq.run -m '+study=$(STUDY)' $(addprefix scale=,$(SCALE)) hydra/launcher=local
	$(BIN)/python -m analysis.results 'runs/$(or $(NAME),$(STUDY))' --study '$(STUDY)' $(addprefix --scale ,$(SCALE)) --out '$(RESULTS)'

test: $(READY) ## all tests but the slow ones (a few minutes)
	$(BIN)/python -m pytest -n auto -m "not slow"

integration: $(READY) ## the slow tests: learning, compiling, whole runs in processes; SLURM and a browser if installed
	$(BIN)/python -m pytest -n auto --dist loadgroup -m slow

lint: $(READY) ## check style and format (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## fix style and format with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## measure speed against its goals (also in benchmarks/results.json), checkpoints and a report
	$(BIN)/python -m benchmarks.goals
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.report

docs: $(READY) ## write the generated parts of docs/ and build the site: site/index.html
	$(BIN)/python scripts/write_docs.py
	$(BIN)/python scripts/stage_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: ## update requirements.lock from the ranges in pyproject.toml
	./scripts/lock $(PYTHON)

clean: ## remove .venv and caches, but not runs/
	rm -rf $(VENV) build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
