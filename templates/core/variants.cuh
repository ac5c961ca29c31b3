// Names for what a kernel is compiled for.

enum { FORM_RAGGED_M = 0, FORM_RAGGED_K = 1 };        // fprop and dgrad; wgrad
enum { SCHEDULE_LIST = 0, SCHEDULE_SCAN = 1, SCHEDULE_COMPACT = 2 };   // see core/scheduler.cuh
enum { ORDER_LISTED = 0, ORDER_CLAIMED = 1 };   // see core/scheduler.cuh
enum { GATE_NONE = 0, GATE_INTERLEAVED = 1, GATE_SPLIT = 2 };   // see core/epilogue_steps.cuh.j2
