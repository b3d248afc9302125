# Two commands do everything: `make demo` and `make test`. Both set up what they need in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo up test check format protos wheel clean
help:            ## show this
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.product   ## run 20 real chat requests through the whole mesh and show the answers
	@scripts/demo

up: $(VENV)/.product     ## leave the mesh running (Ctrl-C stops it)
	@haywain up

test: $(VENV)/.develop   ## run every test
	@haywain demo-model --quiet >/dev/null
	pytest $(PYTEST)

check: $(VENV)/.develop  ## lint, types, layering, protos, Envoy's configuration
	@scripts/check

format: $(VENV)/.develop ## format code and protos
	ruff format . && ruff check --fix . && buf format -w protos

protos: $(VENV)/.develop ## regenerate stubs and Envoy's descriptors from protos/
	scripts/protos && buf lint && buf format -d --exit-code protos

wheel: $(VENV)/.develop  ## build dist/haywain-*.whl
	python -m build --wheel --no-isolation

clean:           ## remove what was built (not the cached model)
	rm -rf $(VENV) dist build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Haywain needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Choose another: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.product: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || echo "Installing; llama.cpp is compiled on the first run, which takes 5 to 15 minutes. Later runs reuse it."
	$(BIN)/python -m pip install --quiet --editable '.[llamacpp]'
	@touch $@

$(VENV)/.develop: pyproject.toml | $(VENV)/.product
	$(BIN)/python -m pip install --quiet --editable '.[llamacpp,test,dev]'
	@touch $@
