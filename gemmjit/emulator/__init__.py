"""A PTX emulator: the kernels' own PTX, executed on NumPy arrays.

A reader of the PTX manual finds an instruction's semantics in the module of its chapter:

====================  ===============================================================
parser, ptx_*         text to :mod:`module` objects; :mod:`program` links and lays out
lanes, steps          which threads execute; what an instruction becomes
machine, scheduler    who runs next, divergence, waves of blocks, deadlocks; :mod:`warp_choice`
alu_*, compare        integer, bit, float and half arithmetic; comparison
convert, move         cvt; mov and address windows
spaces, load_store    state spaces; ld and st.  :mod:`atomics`: atom and red
warp, barriers        shuffles and votes; bar and barrier.cluster
mbarrier              mbarrier objects; :mod:`instructions_mbarrier`
async_engine          when asynchronous work completes
copy_async, copy_bulk cp.async; cp.async.bulk.  :mod:`tma`: tensor copies
mma, wgmma, wmma      matrix products; :mod:`fragments`, :mod:`matrix_descriptor`
mma_kinds             mma.sync of small floats and block scales; :mod:`small_floats`
tcgen05_*             products, loads and stores of :mod:`tensor_memory`;
                      :mod:`tmem_hazards`: what nothing orders; :mod:`cta_group`: pairs
assumptions           what no document and no known kernel decides
races                 proxy fences: :mod:`unfenced_writes`, :mod:`unfenced_reads`;
                      :mod:`flights`: asynchronous work on shared memory;
                      :mod:`visibility`: barriers used before a visible init
dependencies          order between launches, griddepcontrol;
                      :mod:`cluster_launch_control`: blocks that have not started
register_pool         setmaxnreg
modifiers             which modifiers are known; anything else is refused
trace                 a timeline for Perfetto
executor              :func:`emulate`, the interface; :mod:`kernel_launch`: what it takes;
                      :mod:`settings`: for NumPy calls
trace                 timelines; :mod:`chrome_trace`: as a file for Perfetto
====================  ===============================================================
"""

from __future__ import annotations

from gemmjit.emulator.executor import KernelLaunch, Report, TensorMapValue, emulate
from gemmjit.emulator.memory import DeviceMemory
from gemmjit.emulator.settings import emulating
from gemmjit.emulator.trace import Trace

__all__ = [
    "DeviceMemory", "KernelLaunch", "Report", "TensorMapValue", "Trace", "emulate", "emulating",
]  # fmt: skip
