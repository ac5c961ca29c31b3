"""Environment variables as ``gemmjit doctor`` looks at them."""

from __future__ import annotations

from typing import Any

from gemmjit import env
from gemmjit.arch import Arch
from gemmjit.cli.finding import Finding
from gemmjit.errors import InvalidEnvironmentError, UnsupportedArchError

__all__ = ["variables"]

#: Without a value that can be read, nothing is compiled.
_STOPS_COMPILING = frozenset({"GEMMJIT_DISABLE_JIT", "GEMMJIT_LINEINFO"})


def variables(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return every variable with its value; a wrong one is a finding.

    Those that name directories or a size are looked at with the cache and the templates.
    """
    for variable in env.VARIABLES:
        value = env.get(variable.name)
        try:
            if variable.values:
                env.choice(variable.name)
            elif variable.name == "GEMMJIT_ARCH" and value is not None:
                Arch.parse(value)
        except (InvalidEnvironmentError, UnsupportedArchError) as error:
            what = str(error).replace("arch:", f"{variable.name}:", 1)
            mend = f"Correct {variable.name}, or unset it"
            if variable.name in _STOPS_COMPILING:
                findings.append(Finding(what, mend, of_variable=True))
            else:
                findings.append(Finding(what, mend, "run as asked", of_variable=True))
    return [{"name": v.name, "value": env.get(v.name), "default": v.default} for v in env.VARIABLES]
