"""SASS of a cubin, by the disassembler that the ``inspect`` extra brings."""

from __future__ import annotations

import shutil

from gemmjit.errors import CompileError
from gemmjit.installed import installed

__all__ = ["DisassemblerNotFoundError", "disassemble"]

_PACKAGES = {
    "nvdisasm": "nvidia-cuda-nvdisasm",
    "cuobjdump": "nvidia-cuda-cuobjdump",
}
_ARGUMENTS = {"nvdisasm": ["-c"], "cuobjdump": ["-sass"]}


class DisassemblerNotFoundError(CompileError):
    """Neither nvdisasm nor cuobjdump is installed."""


def _find(tool: str) -> str | None:
    package = installed(_PACKAGES[tool])
    if package is not None:
        path = package[1] / "nvidia/cu13/bin" / tool
        if path.is_file():
            return str(path)
    return shutil.which(tool)


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a cubin.

    Raises
    ------
    DisassemblerNotFoundError
        If no disassembler is installed; the message says how to get one.
    CompileError
        If the disassembler refuses the cubin.
    """
    import subprocess  # these two are for people, and no call needs them
    import tempfile

    for tool in _PACKAGES:
        path = _find(tool)
        if path is not None:
            break
    else:
        raise DisassemblerNotFoundError(
            'SASS needs nvdisasm or cuobjdump. Install them with: pip install "gemmjit[inspect]"'
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [path, *_ARGUMENTS[tool], file.name], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise CompileError(f"{tool} refused the cubin: {done.stderr.strip()}", log=done.stderr)
    return done.stdout
