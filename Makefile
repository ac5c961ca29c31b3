# make demo, make test, make check: each creates .venv first, with everything that it needs.
# PYTHON chooses the interpreter (3.11 or newer) that the environments are made from.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# A second environment: the oldest NVRTC that is supported, in front of everything of the first.
OLD_VENV  := .venv-nvrtc130
OLD_READY := $(OLD_VENV)/.ready

# A third: Triton, whose kernels the emulator runs. The version is fixed, so that only a change here changes them.
TRITON_VENV  := .venv-triton
TRITON_READY := $(TRITON_VENV)/.ready

# Two workers on two cores: threads of BLAS that wait for each other would only be in their way.
test test-nvrtc130 test-triton: export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-nvrtc130 test-triton check format docs site clean

demo: $(READY)
	$(BIN)/gemmjit demo

test: $(READY)
	$(BIN)/python -m pytest -n 2

test-nvrtc130: $(OLD_READY)
	@$(OLD_VENV)/bin/python -c 'from gemmjit.compiler import get_compiler as c; v = c().version; \
	  print("NVRTC", v); assert v.startswith("13.0."), "the older NVRTC is not the one that is found"'
	$(OLD_VENV)/bin/python -m pytest -n 2 tests/compile tests/unit/test_compiler.py tests/unit/test_compiler_errors.py

test-triton: export REQUIRE_TRITON := 1
test-triton: $(TRITON_READY)
	$(TRITON_VENV)/bin/python -m pytest -n 2 tests/emulator/test_triton.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python docs/generate.py

# Into build/site; warnings are errors.
site: $(READY)
	$(BIN)/mkdocs build

clean:
	rm -rf $(VENV) $(OLD_VENV) $(TRITON_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Dependency groups need pip 25.1; the pip that comes with Debian 12 or Ubuntu 24.04 is older.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[inspect,rich]" --group dev
	touch $@

# Stands in front of the packages of the first environment: $(call in-front,environment,package)
define in-front
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet "$(2)"
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gemmjit.pth
	touch $@
endef

$(OLD_READY): $(READY)
	$(call in-front,$(OLD_VENV),nvidia-cuda-nvrtc==13.0.*)

$(TRITON_READY): $(READY)
	$(call in-front,$(TRITON_VENV),triton==3.9.*)
