"""Measuring servers from outside: a client of its own, the servers, the experiments, the report."""
