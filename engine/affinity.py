"""Which replica a request goes to: the one that has most of its prefix, unless it is too busy.

Pure bookkeeping over text. Who the replicas are and how requests reach them is not known here. What
a replica has is guessed from what it was sent, cut into pieces that are hashed in a chain, so that
a piece counts only behind the same beginning. A wrong guess costs time and nothing else.
"""

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

PIECE = 256  # characters
PIECES = 512  # of a request that are looked at, 128k characters
KEPT = 65_536  # pieces remembered of a replica
SLACK = 4  # requests more than the least busy replica has, above which prefix counts for nothing

Name = TypeVar("Name", bound=Hashable)


class Affinity(Generic[Name]):
    """What each replica was sent. A replica's name is whatever its owner calls it by."""

    def __init__(self) -> None:
        self._seen: dict[Name, OrderedDict[int, None]] = {}

    def choose(self, chain: Sequence[int], loads: Mapping[Name, int]) -> Name:
        """The replica for a request, by its `chain` [pieces].

        `loads` says how many requests each candidate is at. Of those that are not too busy it is
        the one with the longest common prefix, then the least busy, then the first. Raises
        ValueError without a candidate.
        """
        limit = min(loads.values()) + SLACK
        able = [replica for replica, load in loads.items() if load <= limit]
        return max(able, key=lambda one: (self.shared(one, chain), -loads[one]))

    def shared(self, replica: Name, chain: Sequence[int]) -> int:
        """How many leading pieces of `chain` [pieces] the replica was sent."""
        seen: Mapping[int, None] = self._seen.get(replica, {})
        return next((at for at, piece in enumerate(chain) if piece not in seen), len(chain))

    def sent(self, replica: Name, chain: Sequence[int]) -> None:
        """Notes that a request with this `chain` [pieces] went to the replica."""
        seen = self._seen.setdefault(replica, OrderedDict())
        for piece in reversed(chain):  # the beginning is forgotten last
            seen[piece] = None
            seen.move_to_end(piece)
        while len(seen) > KEPT:
            seen.popitem(last=False)

    def forget(self, replica: Name) -> None:
        """Notes that the replica has ended, or starts anew with an empty cache."""
        self._seen.pop(replica, None)


def chain_of(body: bytes) -> list[int]:
    """The hashes [pieces] of the leading pieces of a request, 256 characters each; empty for a body
    that is not JSON, or holds no prompt as long as that."""
    text = _prompt_text(body)
    chain: list[int] = []
    for start in range(0, min(len(text), PIECE * PIECES) - PIECE + 1, PIECE):
        chain.append(hash((chain[-1] if chain else 0, text[start : start + PIECE])))
    return chain


def _prompt_text(body: bytes) -> str:
    """What the model will read, in its order: tools and messages, or the prompt."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    messages = fields.get("messages")
    if isinstance(messages, list):
        # a template writes tools into the first message, so both begin the prompt
        return json.dumps([fields.get("tools"), *messages], ensure_ascii=False)
    prompt = fields.get("prompt")
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
