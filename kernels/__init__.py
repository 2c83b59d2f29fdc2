"""Ordinary kernels, each beside its port: declaration, oracle, standalone form, task, ladder."""
