# Each target does its own set-up in .venv; nothing but Python 3.11 and Debian's packages is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Stamps of what is installed: what the demo needs, what the tests need besides, and what the tools
# and the soak tests need besides that.
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
SOAK := $(VENV)/.soak
SOURCES := pyproject.toml common/kernel/projections.c common/kernel/field.c
# Of 13,000 modules a demo loads 3,000: each is compiled when it is first loaded, and then kept.
INSTALL := $(PYTHON) -m venv $(VENV) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE =
PROTOS := $(wildcard protos/*.proto)
# What a data owner's part may load: it is for systems too that aren't Linux.
CLIENT := --config-file .mypy-platforms.toml \
	-p precad.client -p precad.common -m precad.cli.owner_commands --exclude aggregator
GENERATED := protos/*_pb2*.py protos/*_pb2*.pyi

.PHONY: lock release site manifests demo test soak flower transformers lint protos protos-check bench noise chaos mutants model help

help: ## this list
	@awk -F ' *## *' '/^[a-z-]+:.*##/ { sub(/:.*/, "", $$1); printf "make %-13s %s\n", $$1, $$2 }' \
		$(MAKEFILE_LIST)

$(DEMO): $(SOURCES)
	$(INSTALL) -e '.[demo]'
	@touch $@

$(READY): $(SOURCES)
	$(INSTALL) -e '.[test]'
	@touch $(DEMO) $@

$(TOOLS): $(READY)
	$(INSTALL) -e '.[dev]'
	@touch $@

$(SOAK): $(READY)
	$(INSTALL) -e '.[soak]'
	@touch $@

demo: $(DEMO) ## a private training on real data, every part its own process (ARGS=…)
	$(BIN)/python -m examples.demo $(ARGS)

# One thread a process: more of them on the same cores wait for each other, at full speed. One
# process more than cores: some tests wait for processes that they started.
test: $(READY) ## what must hold for a change (ARGS=…: pytest's arguments)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist worksteal $(ARGS)

soak: $(SOAK) ## what takes hours, in 20 parts (ARGS="--part 7/20"); goes on where it was broken off
	PYTHONPATH=src:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.run $(ARGS)

# Flower itself and what it imports beside ours, in the tests and in `benchmarks.rounds`: all that it
# depends on has 300 MB.
FLOWER := 'flwr==1.41.*' 'httpx<1' 'iterators<0.0.3' 'pycryptodome<4' 'typer<0.21' 'rich<15' \
	shellingham markdown-it-py mdurl 'fastapi>=0.138,<0.139' 'starlette>=1.3.1,<1.4' 'tomli<3' \
	'tomli-w<2' 'anyio<5' annotated-doc idna 'requests<3' 'urllib3<3' charset-normalizer certifi

flower: $(READY) ## owners that Flower starts, against the real Flower
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade \
		--target build/flower $(FLOWER)
	PYTHONPATH=build/flower $(BIN)/python -m pytest tests/flower -W ignore::DeprecationWarning:typer $(ARGS)

# transformers and what it imports beside ours: 80 MB, which nothing else needs.
TRANSFORMERS := 'transformers==5.24.*' 'huggingface-hub==2.4.*' 'tokenizers==0.23.*' regex tqdm \
	'httpx2==2.16.*' 'httpcore2==2.16.*' anyio h11 idna truststore

transformers: $(READY) ## models of Hugging Face's transformers, drawn at random
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade \
		--target build/transformers $(TRANSFORMERS)
	PYTHONPATH=build/transformers OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/transformers $(ARGS)

manifests: $(READY) ## Kubernetes' manifests against its own schemas
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade \
		--target build/manifests 'kubernetes-validate>=1.37,<2'
	PYTHONPATH=build/manifests $(BIN)/python deploy/kubernetes/check.py

site: $(READY) ## the documents as pages, in build/site; a warning is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade \
		--target build/mkdocs 'mkdocs>=1.6,<2' 'mkdocs-material>=9.6,<10' 'mkdocstrings[python]>=0.30'
	PYTHONPATH=build/mkdocs $(BIN)/python docs/site/build.py
	PRECAD_SITE=build/site $(BIN)/python -m pytest tests/site $(ARGS)

lock: $(TOOLS) ## resolve deploy/lock.txt, what images and releases hold (ARGS=--upgrade)
	$(BIN)/python deploy/lock.py $(ARGS)

# The same commit gives the same files, byte by byte: times are the commit's.
release: $(TOOLS) ## a release in dist: packages, images, bills of materials, checksums (TRY=1: of any commit)
	$(BIN)/python deploy/release.py $(if $(TRY),--try)

lint: $(TOOLS) ## ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 $(CLIENT)
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin $(CLIENT)

protos: $(TOOLS) ## generate the protobuf code anew
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src --mypy_out=src --mypy_grpc_out=src $(addprefix src/precad/,$(PROTOS))

protos-check: protos ## fail unless git has the protobuf code that the .proto files give
	@git diff --exit-code -- $(GENERATED) && test -z "$$(git ls-files --others -- $(GENERATED))"

bench: $(TOOLS) ## the benchmarks; results go to benchmarks/results (ARGS=…)
	PYTHONPATH=src:. $(BIN)/python -m benchmarks.rounds --series --output benchmarks/results/bench.json $(ARGS)
	for script in benchmarks/*.py; do PYTHONPATH=. $(BIN)/python $$script || exit 1; done

noise: $(READY) ## goodness of fit of the noise, 10^8 samples at four scales
	PYTHONPATH=src:. $(BIN)/python -m tests.rig.noise_fit --output benchmarks/results/noise_fit.json

chaos: $(READY) ## 300 versions of everything that may go wrong; goes on where it was broken off
	PYTHONPATH=src:. $(BIN)/python -m tests.soak.chaos --output benchmarks/results/chaos.json

mutants: $(READY) ## small changes of what must be right, for each a test that fails; goes on (ARGS="--minutes 30")
	PYTHONPATH=src:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants $(ARGS)

model: $(READY) ## the release protocol's model, with its mutants; minutes
	$(BIN)/python tests/model/release_model.py --replace one
	$(BIN)/python tests/model/release_model.py --mutants
