"""Benchmarks: contestants in processes of their own, measured in turns, checked before timed."""
