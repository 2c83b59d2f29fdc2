"""Which replica a request goes to: the one that has most of its prefix, unless it is too busy.

Pure bookkeeping over text. Who the replicas are and how requests reach them is not known here. What
a replica has is guessed from what it was sent, cut into pieces that are hashed in a chain, so that
a piece counts only behind the same beginning. A wrong guess costs time and nothing else.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

PIECE = 256  # characters
PIECES = 512  # of a request that are looked at, 128k characters
KEPT = 65_536  # pieces remembered of a replica
SLACK = 4  # requests more than the least busy replica has, above which prefix counts for nothing


class Affinity:
    """What each of `replicas` replicas was sent."""

    def __init__(self, replicas: int) -> None:
        self._seen: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]

    def choose(self, chain: Sequence[int], loads: Mapping[int, int]) -> int:
        """The replica for a request, by its `chain` of pieces.

        `loads` says how many requests each candidate is at, by replica. Of those that are not too
        busy it is the one with the longest common prefix, then the least busy, then the first.
        Raises ValueError without a candidate.
        """
        limit = min(loads.values()) + SLACK
        able = [replica for replica, load in loads.items() if load <= limit]
        return max(able, key=lambda one: (self.shared(one, chain), -loads[one], -one))

    def shared(self, replica: int, chain: Sequence[int]) -> int:
        """How many leading pieces of `chain` the replica was sent."""
        seen = self._seen[replica]
        return next((at for at, piece in enumerate(chain) if piece not in seen), len(chain))

    def sent(self, replica: int, chain: Sequence[int]) -> None:
        """Notes that a request with this chain went to the replica."""
        seen = self._seen[replica]
        for piece in reversed(chain):  # the beginning is forgotten last
            seen[piece] = None
            seen.move_to_end(piece)
        while len(seen) > KEPT:
            seen.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Notes that the replica starts anew, with an empty cache."""
        self._seen[replica].clear()


def chain_of(body: bytes) -> list[int]:
    """The hashes of a request's leading pieces; empty for a body that holds no prompt."""
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
