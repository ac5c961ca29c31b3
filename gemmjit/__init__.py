"""A JIT kernel toolkit for grouped GEMM."""
