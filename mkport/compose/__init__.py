"""Writes one readable file that holds a whole megakernel: primitives, bodies, dispatch, worker."""

from mkport.compose.cpu import Program, compose_cpu

__all__ = ["Program", "compose_cpu"]
