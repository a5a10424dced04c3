# `make run` and `make test` do all the set-up on a fresh machine, in the virtual environment .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch is installed first and pinned; otherwise another package's requirement selects the build.
TORCH ?= torch==2.13.0
# One worker more than processors: some tests wait for processes of their own.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: run train test lint docs clean

run: $(VENV)/.run
	$(BIN)/rolegraph run solver_judge --limit 64 --rollouts 2

train: $(VENV)/.run
	$(BIN)/rolegraph train solver_judge

test: $(VENV)/.test lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/words.py

# Build the site in build/site and check its links.
docs: $(VENV)/.test
	$(BIN)/python docs/reference.py
	$(BIN)/mkdocs build --strict

$(VENV)/.run: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[local]"
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --editable ".[local,data,math,mcp,mlflow,openenv,optimize,otlp,png,reasoning-gym,sandbox,search,textarena,trackio,dev,docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist
