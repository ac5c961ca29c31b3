"""A process that starts, makes one call with a warm cache, and says where its time went.

Run by path, so that nothing is imported before the first line: ``python -P startup_run.py START``,
where START is the parent's monotonic clock in nanoseconds just before it starts this process.
"""

import time

_BEGUN = time.monotonic_ns()

if __name__ == "__main__":
    import json
    import sys

    MARKS = [("interpreter", _BEGUN)]

    def mark(name: str) -> None:
        """Take the time at the end of a step."""
        MARKS.append((name, time.monotonic_ns()))

    import numpy

    mark("import numpy")
    import ml_dtypes
    import platformdirs  # noqa: F401

    mark("import ml_dtypes, platformdirs")
    import gemmjit

    call = gemmjit.grouped_mm
    from gemmjit.build import build, find_first
    from gemmjit.ops.dispatch import default_arch, spec_for

    mark("import gemmjit")
    from gemmjit.cuda.driver import is_available

    on_gpu = is_available()
    mark("look for a driver: import cuda.bindings, cuInit")
    arch = default_arch()
    if on_gpu:
        from gemmjit.cuda.device import device

        arch = device(0).arch
        mark("driver: primary context")
    problem = gemmjit.Problem.contiguous(num_groups=8, rows=1024, n=1024, k=1024)
    spec = spec_for(problem, arch)
    mark("choose kernel and tile")
    kernel = find_first(spec.alternatives) or build(spec)
    mark("find the kernel and read it, with checksums")
    result = {"arch": str(arch), "kernel": kernel.entry, "from_cache": kernel.from_cache}
    if on_gpu:
        from gemmjit.cuda.device import current
        from gemmjit.cuda.library import load

        with current(0):
            load(kernel, 0)
        mark("load the cubin into the driver")
        import cupy

        mark("import cupy")
        bfloat16 = numpy.dtype(ml_dtypes.bfloat16)
        a = cupy.zeros((1024, 1024), numpy.uint16).view(bfloat16)
        b = cupy.zeros((8, 1024, 1024), numpy.uint16).view(bfloat16)
        offs = cupy.asarray(numpy.arange(128, 1025, 128, dtype=numpy.int32))
        cupy.cuda.Device(0).synchronize()
        mark("make the operands")
        call(a, b, offs=offs)
        cupy.cuda.Device(0).synchronize()
        mark("first call: plan, launch, wait")
        call(a, b, offs=offs)
        cupy.cuda.Device(0).synchronize()
        mark("second call: launch, wait")
    from gemmjit.cache import stats

    result["compiles"] = stats().compiles  # a call that compiles is not a warm one
    result["rendered"] = "gemmjit.templating.rendering" in sys.modules
    steps = []
    last = int(sys.argv[1])
    for name, moment in MARKS:
        steps.append([name, (moment - last) / 1e6])
        last = moment
    print(json.dumps({**result, "on_gpu": on_gpu, "steps": steps}))
