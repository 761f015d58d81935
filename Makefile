# Every command works from a bare clone: it first makes the virtual environment it needs.
#   STACK=keras3 (default), addons or tpu;  PYTHON=… names the interpreter of a new environment.
#   TESTS=… goes to pytest: folders, --ignore, -k.  JOBS: processes of the tests, by default one for each core.

STACK ?= keras3
JOBS ?= $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
MINUTES ?= 60
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV_keras3 := .venv
VENV_addons := .venv-addons
VENV_tpu := .venv-tpu
VENV_interop := .venv-interop
VENV_docs := .venv-docs
VENV_dist := .venv-dist
VENV := $(VENV_$(STACK))
ifeq ($(VENV),)
$(error STACK must be keras3, addons or tpu. Received: $(STACK))
endif
BIN := $(VENV)/bin
CODE := albert_tf tfrecords_tools tpu_scripts benchmarks tests docs setup.py
TYPED := $(sort $(dir $(wildcard albert_tf/*.py tfrecords_tools/*.py tpu_scripts/*.py benchmarks/*.py)))
# Which tests stay in one process: tests/conftest.py.
PYTEST = -m pytest $(if $(filter-out 0 1,$(JOBS)),-n $(JOBS))
# Ends a hanging run; absent on some systems, where pytest's limit per test remains.
LIMIT := $(shell command -v timeout > /dev/null && echo timeout --kill-after=30)

export PYTHON
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help demo lab lab-docs doctor test test-ci test-all test-interop fuzz lint types check format site dist audit history blocks pictures notebooks install clean clean-env

help:  ## This list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12
	@echo
	@echo "STACK=addons takes TensorFlow 2.15 with TensorFlow Addons, STACK=tpu TensorFlow for TPU VMs; PYTHON=/path/to/python chooses the interpreter."

install:  ## Make the environment of STACK (.venv, .venv-addons or .venv-tpu).
	@.ci/environment $(STACK)

demo: install  ## Text -> vocabulary -> TFRecords -> pretraining -> SavedModel -> fill-mask, on this machine's documentation.
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python tpu_scripts/demo.py

test: install  ## The tests of STACK, without those marked slow or nightly.
	@$(LIMIT) $(if $(LIMIT),3600) $(BIN)/python $(PYTEST) -m "not slow and not nightly" $(TESTS)

test-ci: install  ## What CI runs of STACK: of the default stack all but nightly tests, of the others the quick ones marked `stack`.
	@$(LIMIT) $(if $(LIMIT),4500) $(BIN)/python $(PYTEST) -m "$(if $(filter keras3,$(STACK)),,stack and not slow and )not nightly" $(TESTS)

test-all: install  ## All tests of STACK.
	@$(LIMIT) $(if $(LIMIT),9000) $(BIN)/python $(PYTEST) $(TESTS)

test-interop:  ## Comparisons with Hugging Face's ALBERT (PyTorch) and compilation for TPUs (libtpu); a large install.
	@$(MAKE) --no-print-directory STACK=interop install
	@$(LIMIT) $(if $(LIMIT),1800) $(VENV_interop)/bin/python $(PYTEST) tests/modeling/test_oracle_huggingface.py tests/checkpoints tests/planning \
	  tests/keras_api/test_text_models.py::test_the_searches_as_written

fuzz: install  ## Damaged files and odd input with fresh seeds, in rounds for MINUTES=60; prints seeds, cases, and how to repeat a failure.
	@$(BIN)/python tests/fuzz/rounds.py $(MINUTES)

lint: install  ## Format and lint, without changing anything.
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "Run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet $(CODE)

format: install  ## Format, and fix what the linter can fix.
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format --quiet $(CODE)

types: install  ## Static types (default stack).
	@$(BIN)/mypy $(TYPED) setup.py

check:  ## Everything: lint, types, the site, the package, all tests of all stacks. More than CI runs; for every night.
	@$(MAKE) --no-print-directory STACK=keras3 lint types site dist
	@for stack in keras3 addons tpu; do $(MAKE) --no-print-directory STACK=$$stack test-all || exit; done
	@$(MAKE) --no-print-directory test-interop

site:  ## The documentation site, in .site/; a warning is an error.
	@$(MAKE) --no-print-directory STACK=docs install
	@NO_MKDOCS_2_WARNING=1 $(VENV_docs)/bin/mkdocs build --quiet

dist:  ## Wheel and sdist, in dist/: built, checked, and each used from a new environment outside the checkout. In build/sbom/: what it requires.
	@$(MAKE) --no-print-directory STACK=dist install
	@.ci/package $(VENV_dist)/bin/python

audit:  ## Known vulnerabilities of the pinned packages of STACK; asks PyPI.
	@$(MAKE) --no-print-directory STACK=dist install
	@$(VENV_dist)/bin/python -m pip_audit --strict --no-deps --disable-pip -r requirements/$(STACK).txt

history: install  ## Five speeds beside those of the last release, on this machine.
	@$(BIN)/python benchmarks/history.py

blocks: install  ## Run the commands of README and the guides as written, in fresh clones below .cache/blocks; hours.
	@$(BIN)/python tests/command_blocks.py --output=.cache/blocks

pictures: install  ## Draw the pictures of docs/images again: from their text (needs Graphviz), and of the last `make demo` (needs Chromium).
	@for text in docs/images/*.dot; do dot -Tsvg "$$text" -o "$${text%.dot}.svg" || exit 1; done
	@$(BIN)/python docs/site/windows.py
	@if [ -e .demo/run/metrics.jsonl ]; then \
	  $(BIN)/python docs/site/learning_curve.py && $(BIN)/python docs/site/local_page.py .demo/run/saved_model; fi

notebooks: install  ## Run docs/tutorials with their own settings and store what they print and draw; half an hour.
	@$(BIN)/python docs/site/notebooks.py

lab: install  ## The paper's central questions asked again on this machine: embedding size, sharing, sentence loss; hours.
	@for study in embedding sharing sentence_loss; do \
	  $(BIN)/python tpu_scripts/run_study.py --study=$$study --scale=laptop --output_dir=.lab/$$study || exit; done

lab-docs:  ## Copy the tables and pictures of .lab into docs/paper_lab.
	@mkdir -p docs/paper_lab
	@for study in $(patsubst .lab/%/table.md,%,$(wildcard .lab/*/table.md)); do \
	  cp .lab/$$study/table.md docs/paper_lab/$$study.md && cp .lab/$$study/$$study.png docs/paper_lab/; done

doctor: install  ## Check this machine; TPU=local, or TPU=NAME with ZONE and PROJECT, and OUTPUT_DIR=gs://… check those too.
	@$(BIN)/python tpu_scripts/doctor.py --tpu="$(TPU)" --tpu_zone="$(ZONE)" --gcp_project="$(PROJECT)" \
	  --output_dir="$(OUTPUT_DIR)"

clean:  ## Remove caches and what the demo and builds wrote.
	rm -rf .demo .lab .site .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv\* -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

clean-env:  ## Remove the environments of all stacks.
	rm -rf .venv .venv-addons .venv-tpu .venv-interop .venv-docs .venv-dist
