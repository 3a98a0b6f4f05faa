# `make demo` and `make test` set up all they need: a virtual environment with pinned dependencies.

PYTHON ?= python3
VENV ?= .venv
# What `make demo` and `make test` train with: empty for PyPI's PyTorch, `none`, or the URL of an index (of the CPU build).
TORCH ?=
BIN := $(VENV)/bin
comma := ,
# Where it is set, each process of the tests would compile the project and its tests again.
unexport PYTHONDONTWRITEBYTECODE
# It installs what pip would, in a fraction of the time.
UV := $(BIN)/uv
ENVIRONMENT = $(PYTHON) -m venv $(@D)
# Compiled here, once, and not by each process that comes first to a module.
INSTALL = $(UV) pip install --quiet --compile-bytecode --python $(@D)
PINNED = $(INSTALL) --requirement $(word 1,$^) --constraint $(word 2,$^)
# A file's tests run in one process, as they share what their fixtures make. Four processes keep two cores busy: tests
# wait for timers and processes a third of the time. Those of test-all, of kills and servers, have three. -rs prints why
# a test was skipped.
PYTEST := $(BIN)/python -m pytest -rs --dist loadfile --no-loadscope-reorder --numprocesses
# Each process imports all files that it gets. torch takes half a gigabyte, so few processes do. Beam's YAML imports it.
WITH_TORCH := tests/trainer tests/docs tests/owt_pipeline/test_transforms.py tests/owt_pipeline/export/test_folders.py
WITHOUT_TORCH := $(WITH_TORCH:%=--ignore %)

.PHONY: demo environments test test-all test-long test-engines test-dags test-like-macos test-parts test-pythons test-xla lint docs bench-peers gpu-check gpu-check-all extraction-model extraction-gate clean

demo: $(VENV)/installed  ## every stage and the training, offline, from a small web it serves itself
	$(BIN)/owt demo

test: $(VENV)/installed  ## the tests, without the long ones
	$(PYTEST) 4 -m "not slow and not engines and not pythons" $(WITHOUT_TORCH)
	$(PYTEST) 2 -m "not slow and not engines and not pythons" $(WITH_TORCH)

test-all: $(VENV)/installed .venv-servers/installed  ## all tests but those of the targets below; one whose server is missing fails
	OWT_REQUIRE_SERVERS=1 $(PYTEST) 3 -m "not long and not engines and not pythons" --ignore tests/docs/test_parts.py --ignore tests/docs/test_lm_eval.py

test-long: $(VENV)/installed  ## every piece of make gpu-check in tiny form, and what else takes minutes
	$(BIN)/python -m pytest -m long

test-engines: $(VENV)/installed .venv-servers/installed .venv-dependencies/installed .venv-engines/installed  ## jobs on Beam's runners
	OWT_REQUIRE_SERVERS=1 $(PYTEST) 2 -m engines tests/engines

test-dags: $(VENV)/installed .venv-airflow/installed  ## the Airflow DAG, run by Airflow in an environment of its own
	OWT_REQUIRE_AIRFLOW=1 .venv-airflow/bin/python -m pytest tests/dags

test-parts: $(VENV)/installed .venv-lm-eval/installed .venv-parts/installed  ## the examples of docs/how-to/parts.md: Spark (needs Java), Ray, a notebook; lm_eval
	$(BIN)/python -m pytest tests/docs/test_parts.py tests/docs/test_lm_eval.py

test-pythons: $(VENV)/installed  ## the demo, a second generation, the library and the notebook on the oldest and the newest Python, with the newest dependencies
	OWT_REQUIRE_PYTHONS=1 $(BIN)/python -m pytest -m pythons tests/test_pythons.py

# A folder that hides from Python what macOS lacks.
LIKE_MACOS ?= ../shared/tools/like_macos
# Types and the Hub are the same on every system.
SAME_ON_MACOS := --ignore tests/trainer/test_interface.py --ignore tests/trainer/test_huggingface.py
test-like-macos: $(VENV)/installed  ## the demo, and the quick tests of engine, storage and trainer, with the calls that macOS has
	PYTHONPATH=$(LIKE_MACOS) $(BIN)/owt demo
	PYTHONPATH=$(LIKE_MACOS) $(PYTEST) 2 -m "not slow and not long and not engines" $(SAME_ON_MACOS) tests/owt_pipeline/engine tests/owt_pipeline/storage tests/trainer

test-xla: .venv-xla/installed  ## training through torch_xla, in an environment of its own (8 GB), on the CPU
	PJRT_DEVICE=CPU .venv-xla/bin/python -m pytest tests/trainer/test_xla.py $(XLA_TESTS)

lint: $(VENV)/installed  ## lint, formatting, floors of language, types, and blocks of more than 12 lines that are repeated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py
	$(BIN)/mypy
	$(BIN)/pylint owt_pipeline trainer schemas dags

environments: .venv-dependencies/installed .venv-engines/installed .venv-airflow/installed .venv-docs/installed .venv-lm-eval/installed .venv-parts/installed .venv-xla/installed  ## all that can be installed while tests run

docs: $(VENV)/installed .venv-docs/installed  ## the documentation as web pages, in build/docs/
	$(BIN)/python -m schemas.reference > docs/data.md
	$(BIN)/python docs/reference.py
	.venv-docs/bin/python -m sphinx --fail-on-warning --quiet docs build/docs

gpu-check:  ## on a GPU, with the torch that $(PYTHON) has, 8 minutes: 124M, checkpoints, resuming, tests; writes benchmarks/gpu.md
	$(PYTHON) benchmarks/gpu_check.py

gpu-check-all:  ## the rest too, in pieces of at most 8 minutes; continues where it was interrupted
	$(PYTHON) benchmarks/gpu_check.py --all

PEERS := datasketch, datatrove.pipeline.dedup, datatrove.pipeline.extractors, datatrove.pipeline.filters, justext, \
	readability, rensa, spacy, tensorflow_datasets.text.c4_utils, text_dedup
bench-peers: .venv-peers/installed  ## the environment of the peers that benchmarks/ measures; RS_TRAFILATURA=1 also compiles that one, in 17 minutes
	test -z "$(RS_TRAFILATURA)" || $(UV) pip install --quiet --python .venv-peers rs-trafilatura==0.1.1
	.venv-peers/bin/python -c "import $(PEERS)"

extraction-model: $(VENV)/installed  ## fit the model of main text again: make extraction-model DATA=FOLDER
	@test -n "$(DATA)" || { echo "make extraction-model DATA=FOLDER: docs/benchmarks/figures.md says what is in it"; exit 2; }
	$(BIN)/python -m benchmarks.extraction_model $(DATA)

extraction-gate: $(VENV)/installed  ## compare extraction with the last release's, page by page: make extraction-gate DATA=FOLDER
	@test -n "$(DATA)" || { echo "make extraction-gate DATA=FOLDER: docs/benchmarks/figures.md says what is in it"; exit 2; }
	$(BIN)/python -m benchmarks.extraction_model.gate $(DATA)

clean:  ## everything that can be made again
	rm -rf $(VENV) .venv-airflow .venv-dependencies .venv-docs .venv-engines .venv-lm-eval .venv-parts .venv-peers .venv-servers .venv-xla build demo-run

$(UV):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

.venv-airflow/installed: dags/requirements.txt dags/constraints.txt | $(UV)
	$(ENVIRONMENT)
	$(PINNED)
	touch $@

.venv-dependencies/installed: pyproject.toml constraints.txt | $(UV)  ## what a worker's image has, without the package
	$(ENVIRONMENT)
	$(INSTALL) --upgrade "pip>=26" "setuptools>=77"
	$(PINNED) --extra gcp --extra aws --extra azure
	touch $@

.venv-docs/installed: docs/requirements.txt docs/constraints.txt | $(UV)
	$(ENVIRONMENT)
	$(PINNED)
	touch $@

.venv-engines/installed: tests/engines/flink.xml tests/engines/spark.xml | $(UV)
	$(ENVIRONMENT)
	$(INSTALL) --no-deps apache-flink-libraries==1.16.3 pyspark==3.3.4
	GOBIN="$(abspath .venv-engines/bin)" go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0
	for engine in flink spark; do \
		mvn --quiet --batch-mode --file tests/engines/$$engine.xml dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory="$(abspath .venv-engines)/$$engine-job-server" || exit 1; \
	done
	touch $@

.venv-lm-eval/installed: tests/docs/lm-eval.txt | $(UV)  ## lm-evaluation-harness, without what .venv has: its chardet is older than ours
	$(UV) pip install --quiet --compile-bytecode --python $(PYTHON) --target $(@D) --no-deps --requirement $<
	touch $@

.venv-parts/installed: tests/docs/requirements.txt tests/docs/constraints.txt pyproject.toml | $(UV)  ## what docs/how-to/parts.md mixes the library with, and what it needs
	$(ENVIRONMENT)
	$(PINNED) --requirement pyproject.toml
	touch $@

.venv-peers/installed: benchmarks/peers/requirements.txt benchmarks/peers/constraints.txt | $(UV)
	$(ENVIRONMENT)
	$(PINNED)
	# Without what it declares: its MinHash needs none of pyspark, unisim and an old urllib3.
	$(INSTALL) --no-deps text-dedup==0.4.0
	touch $@

.venv-servers/installed: tests/servers/requirements.txt tests/servers/constraints.txt | $(UV)
	$(ENVIRONMENT)
	$(PINNED)
	GOBIN="$(abspath .venv-servers/bin)" go install github.com/fsouza/fake-gcs-server@v1.56.1
	npm install --silent --no-save --no-audit --no-fund --prefix .venv-servers azurite@3.35.0
	touch $@

.venv-xla/installed: tests/trainer/xla-requirements.txt | $(UV)
	$(ENVIRONMENT)
	$(INSTALL) --requirement $<
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt | $(UV)
ifeq ($(TORCH),)
	@echo "Installing into $(VENV), with PyTorch for CUDA: 6.4 GB in all, of which PyTorch takes 4.7."
	@echo "Instead: make TORCH=none (everything but the training), or TORCH=URL of an index that has the CPU build."
else ifneq ($(TORCH),none)
	$(INSTALL) --constraint constraints.txt --index-url $(TORCH) torch
endif
	$(INSTALL) --constraint constraints.txt --editable ".[$(if $(filter none,$(TORCH)),dev,train$(comma)dev)]"
	touch $@
