"""Every exception that gemmjit raises on purpose.

::

    GemmjitError
    ├── InvalidProblemError (ValueError)     shapes, offsets, strides, values of an argument
    ├── InvalidDtypeError (TypeError)        element types
    ├── InvalidConfigError (ValueError)      a tile configuration that breaks a rule
    ├── InvalidEnvironmentError (ValueError) an environment variable with a wrong value
    ├── UnsupportedArchError                 architecture unknown, or without the kernel
    ├── TemplateError                        a template cannot be found or rendered
    ├── CompileError                         NVRTC or ptxas refused the source
    ├── CacheError                           a cache directory, or file of one, not to be used
    ├── ManifestError (ValueError)           a manifest or log that cannot be read
    ├── StalePickleError (ValueError)        a pickle that another version of gemmjit made
    ├── MissingKernelError                   compilation is switched off and no cubin is at hand
    ├── NvrtcNotFoundError                   the NVRTC library cannot be loaded
    ├── DriverNotFoundError                  no CUDA driver, or one that is too old
    ├── CaptureError                         something that a CUDA graph capture forbids
    ├── LaunchError                          the driver refused a launch
    └── EmulatorError                        the PTX emulator stopped a kernel

Messages name the argument, what was expected, what was given and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "CacheError",
    "CaptureError",
    "CompileError",
    "DriverNotFoundError",
    "EmulatorError",
    "GemmjitError",
    "InvalidConfigError",
    "InvalidDtypeError",
    "InvalidEnvironmentError",
    "InvalidProblemError",
    "LaunchError",
    "ManifestError",
    "MissingKernelError",
    "NvrtcNotFoundError",
    "StalePickleError",
    "TemplateError",
    "UnsupportedArchError",
]


class GemmjitError(Exception):
    """Base of every exception that gemmjit raises on purpose."""


class InvalidProblemError(GemmjitError, ValueError):
    """An argument's shape, stride, offsets or value breaks the contract of the call."""


class InvalidDtypeError(GemmjitError, TypeError):
    """An argument's element type is not supported, or does not match another's."""


class InvalidConfigError(GemmjitError, ValueError):
    """A tile configuration breaks a rule; the message lists every broken rule."""


class InvalidEnvironmentError(GemmjitError, ValueError):
    """An environment variable has a value that it does not take."""


class UnsupportedArchError(GemmjitError):
    """The architecture is unknown, or the kernel does not exist for it."""


class TemplateError(GemmjitError):
    """A template cannot be found or rendered; the message names template and line."""


class CompileError(GemmjitError):
    """NVRTC or ptxas refused a kernel.

    Attributes
    ----------
    log : str
        The compiler's log; its positions name templates.
    source : str
        The rendered CUDA source.
    """

    def __init__(self, message: str, *, log: str = "", source: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.source = source


class CacheError(GemmjitError):
    """A cache directory, or a file made of one, that must not be used.

    For example: others can write to it, or a checksum is wrong.
    """


class ManifestError(GemmjitError, ValueError):
    """A list of kernels to compile cannot be read; the message names file and key."""


class StalePickleError(GemmjitError, ValueError):
    """A pickled kernel, config or problem that another version of gemmjit made."""


class MissingKernelError(GemmjitError):
    """Compilation is switched off and no cache layer holds the kernel."""


class NvrtcNotFoundError(GemmjitError):
    """The NVRTC library, or its builtins, cannot be loaded."""


class DriverNotFoundError(GemmjitError):
    """There is no CUDA driver on this machine, or it is older than CUDA 13 (580)."""


class CaptureError(GemmjitError, RuntimeError):
    """The call would do something that a CUDA graph capture forbids."""


class LaunchError(GemmjitError, RuntimeError):
    """The driver refused a launch, or reported a fault."""


class EmulatorError(GemmjitError, RuntimeError):
    """The PTX emulator stopped a kernel; the message names instruction and source line."""
