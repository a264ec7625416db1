# Each target does its own set-up in .venv; nothing but Python 3.11 and Debian's packages is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTOS := $(wildcard protos/*.proto)
GENERATED := protos/*_pb2*.py protos/*_pb2*.pyi

.PHONY: demo test lint protos protos-check bench help

help:
	@echo "make demo [ARGS=…]  a private training run on real data, every part its own process"
	@echo "make test [ARGS=…]  all tests"
	@echo "make lint           ruff and strict mypy"
	@echo "make protos         generate the protobuf code anew"
	@echo "make bench          the benchmarks; results go to benchmarks/results"

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/precad demo $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

protos: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src --mypy_out=src --mypy_grpc_out=src $(addprefix src/precad/,$(PROTOS))

# Generated code is committed; this fails when it isn't what the .proto files say.
protos-check: protos
	@git diff --exit-code -- $(GENERATED) && test -z "$$(git status --porcelain -- $(GENERATED))"

bench: $(READY)
	for script in benchmarks/*.py; do $(BIN)/python -m benchmarks.$$(basename $$script .py) || exit 1; done
