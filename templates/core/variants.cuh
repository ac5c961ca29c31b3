// Names for what a kernel is compiled for.

enum { FORM_RAGGED_M = 0, FORM_RAGGED_K = 1 };        // fprop and dgrad; wgrad
enum { SCHEDULE_LIST = 0, SCHEDULE_SCAN = 1, SCHEDULE_COMPACT = 2 };   // see core/scheduler.cuh
enum { EPILOGUE_STORE = 0, EPILOGUE_ACCUMULATE = 1 }; // overwrite D; add to D
