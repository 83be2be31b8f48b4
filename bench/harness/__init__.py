"""Helpers of the benchmarks. In a package, so that nothing here can shadow a module of a script that lies beside it."""
