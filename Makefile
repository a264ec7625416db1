# Each target does its own set-up in .venv; nothing but Python 3.11 and Debian's packages is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTOS := $(wildcard protos/*.proto)
GENERATED := protos/*_pb2*.py protos/*_pb2*.pyi

.PHONY: demo test lint protos protos-check bench noise chaos model help

help: ## this list
	@awk -F ' *## *' '/^[a-z-]+:.*##/ { sub(/:.*/, "", $$1); printf "make %-13s %s\n", $$1, $$2 }' \
		$(MAKEFILE_LIST)

$(READY): pyproject.toml common/kernel/projections.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY) ## a private training on real data, every part its own process (ARGS=…)
	$(BIN)/precad demo $(ARGS)

test: $(READY) ## all tests (ARGS=…: pytest's arguments)
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(READY) ## ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

protos: $(READY) ## generate the protobuf code anew
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src --mypy_out=src --mypy_grpc_out=src $(addprefix src/precad/,$(PROTOS))

protos-check: protos ## fail unless git has the protobuf code that the .proto files give
	@git diff --exit-code -- $(GENERATED) && test -z "$$(git ls-files --others -- $(GENERATED))"

bench: $(READY) ## the benchmarks; results go to benchmarks/results (ARGS=…)
	$(BIN)/precad bench --series --output benchmarks/results/bench.json $(ARGS)
	for script in benchmarks/*.py; do PYTHONPATH=. $(BIN)/python $$script || exit 1; done

noise: $(READY) ## goodness of fit of the noise, 10^8 samples at four scales; goes on where it was broken off
	PYTHONPATH=src:. $(BIN)/python -m tests.rig.noise_run --output benchmarks/results/noise_fit.json

chaos: $(READY) ## 300 versions of everything that may go wrong; goes on where it was broken off
	PYTHONPATH=src:. $(BIN)/python -m tests.faults.chaos --output benchmarks/results/chaos.json

model: $(READY) ## the release protocol's model, with its mutants; minutes
	$(BIN)/python tests/model/release_model.py --replace one
	$(BIN)/python tests/model/release_model.py --mutants
