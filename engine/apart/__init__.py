"""An engine's loop in a process of its own, so that what a server does never holds up a step."""

from mkport.engine.apart.loop import ApartLoop, Build

__all__ = ["ApartLoop", "Build"]
