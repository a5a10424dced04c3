# `make run` and `make test` do all the set-up on a fresh machine, in the virtual environment .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The exact version of every package that the targets install; `make lock` resolves the file anew.
LOCK ?= requirements.lock
LOCKED_TORCH := $(shell grep '^torch==' $(LOCK))
# PyTorch is installed first; otherwise another package's requirement selects the build.
TORCH ?= $(LOCKED_TORCH)
# A further index for it, such as https://download.pytorch.org/whl/cpu, whose build brings no CUDA libraries.
TORCH_INDEX ?=
# One worker more than processors: some tests wait for processes of their own.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
CONSTRAINTS := $(VENV)/constraints.txt
# uv installs all but torch: it takes a quarter of pip's time. It reads UV_DEFAULT_INDEX and no settings of pip.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python \
	--constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS) --editable
# Options that choose hypothesis's examples and the cases of each corpus; by default a sample of the day.
EXAMPLES ?=
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
RESOLVE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 pyproject.toml \
	--custom-compile-command "make $@"
# Recursion to Python's limit, which fails otherwise under a tracer.
UNTRACED := tests/roles/test_json.py::test_a_schema_that_refers_to_itself_without_end_fails_the_answer_and_no_more
# Share of lines and branches in percent, as measured in November 2026.
COVERAGE_FLOOR := 92
# Version of `make dist`: the tag that CI publishes, without its v.
RELEASE ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
CORE_TESTS := $(addprefix tests/,compile prompts records roles spec vocabulary)

.PHONY: run train test check coverage lint lint-core test-core docs demo lock resolve newest lowest dist clean

run: $(VENV)/.run
	$(BIN)/rolegraph run solver_judge --limit 64 --rollouts 2

train: $(VENV)/.run
	$(BIN)/rolegraph train solver_judge

# A test that fails is run once more, alone: on a busy machine a service may start too late. A fault fails twice;
# what passes then is printed as FLAKY, and fails a scheduled run.
test: $(VENV)/.test
	$(PYTEST) $(EXAMPLES) || { test $$? -eq 1 && $(BIN)/python .ci/flaky.py $(BIN)/python -m pytest -n 0 $(EXAMPLES); }

# Lint, types and the tests of the core, side by side, without torch and so without the types of local/.
check: $(VENV)/.check
	$(MAKE) --jobs 2 --output-sync=target lint-core test-core \
		TYPED="$(addprefix rolegraph/,api cli doctor engine integrations migrate outlook pages roles sandbox starter)"

test-core: $(VENV)/.check
	$(BIN)/python -m pytest -n 2 --dist loadfile $(CORE_TESTS)

# The branches of engine, roles and pages that their own tests cover; CI asks for the floor.
coverage: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(CORE_TESTS) $(addprefix tests/,models pages run sandbox) \
		--deselect $(UNTRACED) --cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE_FLOOR)

lint: $(VENV)/.test lint-core

lint-core: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright $(TYPED)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/words.py

# Build the site in build/site and check its links.
docs: $(VENV)/.test
	$(BIN)/python docs/reference.py
	$(BIN)/mkdocs build --strict

# Train the workflow of docs/demo, unless runs/facts_judge is there, and write its pages.
demo: $(VENV)/.run
	$(BIN)/rolegraph fetch smollm2-135m
	test -d runs/facts_judge || $(BIN)/rolegraph train benchmarks/results/specs/facts_judge.yaml \
		--model local:smollm2-135m train.learning_rate=0.001 train.steps=20 train.validation.every=2 \
		--out runs/facts_judge
	rm -f docs/demo/step-*.html
	$(BIN)/rolegraph report runs/facts_judge --out docs/demo --home ../index.html

# Resolve the newest versions that pyproject.toml allows, for every Python and platform, with the torch of before.
lock: $(VENV)/.test
	echo "$(TORCH)" | $(RESOLVE) --extra test --constraint - --output-file $(LOCK)

# Check that the versions of all extras fit together, on two Pythons, newest and lowest.
resolve: $(VENV)/.check
	$(BIN)/python .ci/resolve.py $(BIN)/uv

# Lint and test with the newest versions of today, in an environment of their own, on all cases of each corpus.
newest: $(VENV)/.test
	rm -rf build/newest && mkdir -p build/newest
	echo "$(TORCH)" | $(RESOLVE) --extra test --constraint - --output-file build/newest/requirements.lock
	@echo "Locked (<) and newest (>) versions that differ:"
	@diff $(LOCK) build/newest/requirements.lock | grep '^[<>] [a-z]' || echo none
	$(MAKE) --keep-going lint test VENV=build/newest LOCK=build/newest/requirements.lock \
		EXAMPLES=--hypothesis-profile=random

# Test the core with the lowest versions that pyproject.toml allows.
lowest: $(VENV)/.test
	rm -rf build/lowest && $(PYTHON) -m venv build/lowest
	$(RESOLVE) --extra light --resolution lowest-direct --output-file build/lowest/constraints.txt
	$(BIN)/uv pip install --quiet --python build/lowest/bin/python \
		--constraint build/lowest/constraints.txt --editable ".[light,dev]"
	build/lowest/bin/python -m pytest -n $(WORKERS) --dist loadfile $(CORE_TESTS)

# Build dist/ and check it as PyPI and users do: in an empty environment, with the newest versions of today.
# twine 7 is the first that reads the metadata 2.5 of hatchling.
dist: DIST := build/dist/bin
dist: $(VENV)/.uv
	rm -rf dist build/dist
	$(BIN)/uv build --quiet --build-constraint $(CONSTRAINTS)
	$(BIN)/uv tool run --from "twine>=7" twine check --strict dist/*
	grep -Fx "version: $(RELEASE)" CITATION.cff && grep -Fx "## $(RELEASE)" CHANGELOG.md
	$(PYTHON) -m venv build/dist
	$(BIN)/uv pip install --quiet --python $(DIST)/python dist/*.whl
	$(DIST)/rolegraph --version | grep -Fx "rolegraph, version $(RELEASE)"
	$(DIST)/rolegraph validate solver_judge
	$(DIST)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/uv pip install --quiet --python $(DIST)/python "$$(ls dist/*.whl)[local]"
	$(DIST)/rolegraph run solver_judge --limit 4 --out build/dist/run

$(VENV)/.uv: pyproject.toml $(LOCK)
	@echo "Installing into $(VENV), once; this takes two to four minutes. 1 of 3: uv …"
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
# A build of torch selects its CUDA libraries.
ifeq ($(TORCH),$(LOCKED_TORCH))
	cp $(LOCK) $(CONSTRAINTS)
else
	grep -vE '^(torch|triton|cuda-|nvidia-)' $(LOCK) >$(CONSTRAINTS)
endif
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) uv
	touch $@

$(VENV)/.run: $(VENV)/.uv
	@echo "2 of 3: $(TORCH), the largest download …"
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	@echo "3 of 3: Rolegraph, transformers and what they need …"
	$(INSTALL) ".[local]"
	touch $@

$(VENV)/.check: $(VENV)/.uv
	$(INSTALL) ".[light,dev]"
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(INSTALL) ".[test]"
	touch $(VENV)/.check $@

clean:
	rm -rf $(VENV) build dist
