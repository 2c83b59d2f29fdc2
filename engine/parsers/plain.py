"""Replies that are text and nothing else."""

from collections.abc import Collection, Iterator

from mkport.engine.parsers.deltas import Delta, Parser


class PlainParser(Parser):
    """All is content."""

    def __init__(self, thinking: bool = False, names: Collection[str] | None = None) -> None:
        """Neither reasoning nor names of tools occur here."""
        super().__init__()

    def _start(self, final: bool) -> Iterator[Delta]:
        text = self._take(len(self._text))
        if text:
            yield Delta(content=text)
