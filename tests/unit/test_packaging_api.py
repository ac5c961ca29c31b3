"""What is public, and what importing it costs. A change here is a change of the interface."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gemmjit

PACKAGE = Path(gemmjit.__file__).parent

NAMES = [
    "CompiledKernel",
    "Config",
    "Epilogue",
    "Problem",
    "RowScale",
    "SimtConfig",
    "Sm80MmaConfig",
    "Sm90TmaMmaConfig",
    "Sm90WgmmaConfig",
    "SwiGLU",
    "__version__",
    "check_offsets",
    "compile",
    "errors",
    "explain",
    "grouped_mm",
    "occupancy",
    "offsets",
    "prepare",
    "render",
    "schedule",
    "templates",
    "workloads",
]

SIGNATURES = {
    "grouped_mm": "(mat_a, mat_b, *, offs=None, bias=None, out_dtype=None, out=None, "
    "accumulate=False, epilogue=None, config=None, stream=None)",
    "render": "(kernel, config=None, arch=None, **variant)",
    "compile": "(kernel, config=None, arch=None, **variant)",
    "prepare": "(problem, config=None, device=None)",
    "explain": "(problem, arch, *, group_sizes=None, configs=())",
    "occupancy": "(registers, threads, smem_bytes, arch)",
    "check_offsets": "(offs, rows)",
    "Problem.contiguous": "(form='ragged_m', *, num_groups, rows, n, k, dtype=bfloat16, "
    "out_dtype=None, a_k_major=None, b_k_major=False, schedule='scan', epilogue='store')",
    "offsets.from_group_sizes": "(group_sizes)",
    "offsets.from_indptr": "(indptr)",
    "offsets.from_row_ids": "(row_ids, num_groups)",
    "offsets.to_group_sizes": "(offs)",
    "schedule.tile_list": "(group_sizes, n, block_m, block_n)",
    "schedule.row_utilization": "(group_sizes, block_m)",
    "templates.override": "(directory)",
    "templates.variables_of": "(template)",
    "workloads.power_law": "(rows, groups, skew)",
    "workloads.entropy_deficit": "(group_sizes)",
}


def test_the_public_names_are_these():
    assert dir(gemmjit) == sorted(NAMES)
    assert sorted(gemmjit.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(gemmjit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        gemmjit.no_such_thing  # noqa: B018


def test_modules_do_not_hide_functions_of_the_same_name():
    run(
        "import gemmjit, gemmjit.ops.toolkit, gemmjit.compiled\n"
        "assert gemmjit.occupancy(95, 256, 0, 'sm_90a') == 2\n"
        "assert callable(gemmjit.compile) and callable(gemmjit.render)"
    )


def test_the_config_of_every_kernel_is_public():
    from gemmjit.kernels import KERNELS

    for kernel in KERNELS.values():
        assert getattr(gemmjit, kernel.config_type.__name__) is kernel.config_type


class _Text:
    """Something whose repr is a text."""

    def __init__(self, value):
        self.text = str(value)

    def __repr__(self):
        return self.text


def _is_dtype(value):
    return type(value).__name__ == "DType"


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_signatures_are_these(name):
    found = gemmjit
    for part in name.split("."):
        found = getattr(found, part)
    signature = inspect.signature(found)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    bare = [p.replace(default=_Text(p.default)) if _is_dtype(p.default) else p for p in bare]
    shown = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    assert str(shown) == SIGNATURES[name]


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_what_is_public_is_documented_and_typed(name):
    found = gemmjit
    for part in name.split("."):
        found = getattr(found, part)
    assert inspect.getdoc(found)
    target = found.__init__ if inspect.isclass(found) else found
    parameters = inspect.signature(target).parameters
    assert all(
        p.annotation is not inspect.Parameter.empty for p in parameters.values() if p.name != "self"
    )


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_loads_nothing_and_touches_nothing():
    run(
        "import os, sys\n"
        "before, files = dict(os.environ), set(sys.modules)\n"
        "import gemmjit\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - files}\n"
        "heavy = new & {'numpy', 'cupy', 'torch', 'cuda', 'jinja2', 'platformdirs', 'asyncio'}\n"
        "assert not heavy, heavy\n"
        "assert dict(os.environ) == before\n"
        "import logging\n"
        "assert not logging.getLogger().handlers"
    )


def test_the_offline_half_works_without_cupy_and_torch():
    """Render and compile where the imports of both fail."""
    run(
        "import sys\n"
        "for name in ('cupy', 'torch', 'cuda.core'):\n"
        "    sys.modules[name] = None\n"
        "from gemmjit import build, selection, constraints, kernels, occupancy, problem\n"
        "from gemmjit.arch import Arch\n"
        "p = problem.Problem.contiguous(num_groups=4, rows=512, n=256, k=128)\n"
        "kernel, config = selection.choose(p, Arch.parse('sm_90a'))\n"
        "variant = constraints.variant_for(p, kernel, config)\n"
        "spec = kernels.KernelSpec(kernel, config, variant, Arch.parse('sm_90a'))\n"
        "assert build.build(spec).occupancy >= 1"
    )


OFFLINE = ("arch", "build", "cache", "compiled", "compiler", "config", "constraints", "dtypes")
OFFLINE += ("elf", "env", "errors", "kernels", "logs", "occupancy", "problem", "schedule")
OFFLINE += ("selection", "templates", "templating", "tensormap", "variant", "workloads")


def test_the_offline_half_never_imports_the_driver():
    """What the import contracts cannot see: they know ``cuda`` as a whole only."""
    seen = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") not in OFFLINE:
            continue
        seen += 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                assert not name.startswith(("cuda.bindings.driver", "cuda.core")), (path, name)
    assert seen > 30
