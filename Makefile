# Everything a contributor runs. Each target makes the environment it needs in .venv.
PYTHON ?= python3
DEVICE ?= cpu
# The extra that brings CuPy: cuda13, or cuda12 for a driver of CUDA 12.
CUDA ?= cuda13
THREADS ?= 2
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= auto
# One BLAS thread per test process: the processes share the cores already.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help test lint types unit numpy compiled fuzz imports kernels docs demo bench gpu asv asv-html clean

help:
	@echo "make test    lint, types, tests, doctests on both CPU engines (what CI runs): make lint types numpy compiled"
	@echo "make numpy   the tests with NumPy alone"
	@echo "make compiled  the tests with every call by the kernels that Numba compiles, where there are any"
	@echo "make fuzz    calls drawn at random beside their oracles; SECONDS=60 SEED=1 ENGINE=compiled (numpy, cuda), FUZZ='--only conv'"
	@echo "make demo    train a small network on handwritten digits; DEVICE=cuda runs it on the GPU"
	@echo "make docs    build the site into docs/_build/html"
	@echo "make imports draw which layer imports which, into build/imports.svg"
	@echo "make kernels compile every kernel in every configuration for three architectures, without a GPU"
	@echo "make gpu     on a machine with a GPU: its tests, compute-sanitizer, and the table beside PyTorch"
	@echo "make bench   the table of the CPU engine beside PyTorch; THREADS=4 gives both so many, BENCH='--only conv' passes options"
	@echo "make asv     run the benchmarks with asv on the environment of this checkout and store them under its commit; ASV='--bench host' passes options"
	@echo "make asv-html  build the dashboard of all stored benchmarks into asv_bench/.asv/html"
	@echo "make clean   remove the environments and everything built"

# One stamp file per extra: pip runs again only when pyproject.toml changed.
$(VENV)/.%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# NumPy first: a fresh clone has no Numba until the compiled stage installs it.
unit:
	$(MAKE) numpy
	$(MAKE) compiled

test: lint types unit

numpy: $(VENV)/.test
	DNNARRAY_NUMBA=0 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# All kernels are compiled first, once, by a process for each core, and by no later run: what a run finds must not depend on
# an older one. DNNARRAY_CACHE_DIR names a folder that keeps them.
KERNELS := $(CURDIR)/build/kernels
compiled: export DNNARRAY_CACHE_DIR ?= $(KERNELS)
compiled: $(VENV)/.test $(VENV)/.cpu
	rm -rf $(KERNELS)
	$(BIN)/python -m dnnarray warmup --dtypes float32 float64
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --compiled

# ENGINE=cuda is for a machine with a GPU, and takes the Python that has CuPy.
SECONDS ?= 60
ENGINE ?= compiled
FUZZ_PYTHON := $(if $(filter cuda,$(ENGINE)),$(PYTHON),$(BIN)/python)
fuzz: $(if $(filter cuda,$(ENGINE)),,$(VENV)/.test $(VENV)/.cpu)
	$(FUZZ_PYTHON) -m tests.fuzz --engine $(ENGINE) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(FUZZ)

imports: $(VENV)/.demo
	$(BIN)/python -m tests.import_graph build/imports.svg

# Every kernel in every configuration for sm_80, sm_90a and sm_100, with no spill: some hours of two cores; no GPU is needed.
kernels: $(VENV)/.test
	$(BIN)/python -m pytest tests/test_kernels.py --all-kernels -n $(JOBS)

demo: $(VENV)/.demo $(if $(filter cuda,$(DEVICE)),$(VENV)/.$(CUDA))
	$(BIN)/python -m demo.digits --device $(DEVICE)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# On a machine with a GPU; uses the Python that has CuPy and PyTorch, since both are too heavy to install unasked.
SHARDS ?= 16
gpu:
	$(PYTHON) -m pytest tests/gpu -p no:cacheprovider -n $(JOBS)
	$(PYTHON) -m tests.gpu.every_kernel --tool memcheck --shards $(SHARDS)
	$(PYTHON) -m tests.gpu.every_kernel --tool racecheck --shards $(SHARDS) --once
	$(PYTHON) -m asv_bench.gpu_start
	$(PYTHON) -m asv_bench.gpu_small
	$(PYTHON) -m asv_bench.gpu

# Set to an older processor, OPENBLAS_CORETYPE halves the matrix products of NumPy.
MEASURED := env -u OPENBLAS_CORETYPE OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) NUMBA_NUM_THREADS=$(THREADS)
bench: $(VENV)/.torch $(VENV)/.bench $(VENV)/.demo $(VENV)/.cpu
	$(MEASURED) $(BIN)/python -m asv_bench.cpu --threads $(THREADS) $(BENCH)

asv: $(VENV)/.bench
	cd asv_bench && ../$(BIN)/asv machine --yes && $(MEASURED) ../$(BIN)/asv run --show-stderr --python=same --set-commit-hash=$$(git rev-parse HEAD) $(ASV)

asv-html: $(VENV)/.bench
	cd asv_bench && ../$(BIN)/asv publish

clean:
	rm -rf $(VENV) docs/_build docs/reference/generated demo-output build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
