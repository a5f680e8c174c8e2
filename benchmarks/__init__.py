"""Benchmarks: timings are printed and compared with goals, but not asserted in tests."""
