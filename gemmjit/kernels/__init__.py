"""The ladder of kernels: what the host knows about each template."""

from gemmjit.kernels.kernel import Kernel, KernelSpec
from gemmjit.kernels.registry import KERNELS, kernel
from gemmjit.variant import Variant

__all__ = ["KERNELS", "Kernel", "KernelSpec", "Variant", "kernel"]
