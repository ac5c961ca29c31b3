"""Why a tile cannot serve a problem on a device, if it cannot."""

from __future__ import annotations

from gemmjit.arch import Arch, targets_for
from gemmjit.config import Config
from gemmjit.constraints import map_violations, variant_for, violations
from gemmjit.kernels import Kernel
from gemmjit.problem import Problem

__all__ = ["reasons_against"]


def reasons_against(kernel: Kernel, config: Config, problem: Problem, arch: Arch) -> list[str]:
    """Return every rule that a tile breaks for a problem; empty if it can serve it.

    Parameters
    ----------
    kernel : Kernel
    config : Config
    problem : Problem
    arch : Arch
        The device's architecture.
    """
    targets = targets_for(arch, kernel.accelerated)
    if not targets:
        return [f"arch: {arch} has no target with the instructions of {kernel.name}"]
    variant = variant_for(problem, kernel, config)
    reasons = violations(kernel, config, variant, targets[0], problem)
    return reasons or map_violations(kernel, config, variant, problem, targets[0])
