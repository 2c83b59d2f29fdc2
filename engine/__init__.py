"""The reference engine: loading, cache, running, sampling. It imports mkport, never the reverse."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkport.engine.engine import Engine, Output

__all__ = ["Engine", "Output"]


def __getattr__(name: str) -> Any:
    """The engine is imported when it is asked for: most of this package is used without it."""
    if name in __all__:
        from mkport.engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
