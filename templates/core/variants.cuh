// Names for what a kernel is compiled for.

enum { FORM_RAGGED_M = 0, FORM_RAGGED_K = 1 };        // fprop and dgrad; wgrad
enum { SCHEDULE_LIST = 0, SCHEDULE_SCAN = 1 };        // tile list from the host; offsets walked here
enum { EPILOGUE_STORE = 0, EPILOGUE_ACCUMULATE = 1 }; // overwrite D; add to D
