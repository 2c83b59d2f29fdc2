"""What a port can be refused for, warned of, or found unfit by: a code, a place, and words."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["refusal", "warning", "undefined"]

TITLES = {
    "MK101": "text that cannot be read",
    "MK102": "an open template",
    "MK103": "a parameter that the record cannot carry",
    "MK104": "too many arguments",
    "MK105": "a name of a library that is not here",
    "MK106": "host library calls between kernels",
    "MK107": "Numba code without an exact counterpart",
    "MK110": "an unknown block",
    "MK111": "a block that is too big",
    "MK112": "a block that is not whole warps",
    "MK120": "shared memory over budget",
    "MK121": "an unknown amount of dynamic shared memory",
    "MK122": "a shared array of unknown size",
    "MK123": "a shared array in a helper that is instantiated more than once",
    "MK130": "a thread-dependent return before a barrier",
    "MK131": "a thread-dependent loop around a barrier",
    "MK132": "a thread-dependent condition around a barrier",
    "MK133": "a lane-dependent return before a warp operation",
    "MK134": "control flow that cannot be decided",
    "MK140": "a non-coherent load",
    "MK141": "mutable constants, textures or device variables",
    "MK150": "a barrier of the whole grid",
    "MK151": "a block that waits for another",
    "MK152": "reliance on the order of blocks",
    "MK153": "thread block clusters",
    "MK154": "dynamic parallelism",
    "MK155": "barriers or registers managed by hand",
    "MK156": "asynchronous transactions",
    "MK157": "cooperative groups",
    "MK158": "the device heap",
    "MK159": "hardware registers, traps and exits",
    "MK160": "too many registers",
    "MK161": "a port that does not compile",
    "MK170": "machine code with non-coherent loads",
    "MK180": "bits that differ",
    "MK181": "an original that made-up arguments do not judge",
    "MK201": "the original races",
    "MK202": "the original reads what nobody wrote",
    "MK203": "the original leaves its buffers",
    "MK204": "the original misaligns an access",
    "MK205": "the original's threads meet different barriers",
    "MK206": "the original crashes",
    "MK207": "the original differs from itself",
    "MK208": "the original does not end",
    "MK301": "float atomics",
    "MK302": "a volatile protocol",
    "MK303": "printing",
    "MK304": "control flow that depends on memory",
    "MK305": "clocks and active masks",
    "MK306": "assertions",
    "MK307": "arithmetic that C++ leaves undefined",
}


@dataclass(frozen=True)
class Finding:
    """Something about one place of a file.

    `cause` is what stands there, `consequence` what it would do in a megakernel, `fix` the smallest
    edit or option that mends it. `line` and `column` count from 1; 0 where no place is meant.
    """

    code: str
    line: int
    column: int
    cause: str
    consequence: str
    fix: str
    severity: Severity = "refusal"
    file: str = ""

    @property
    def title(self) -> str:
        """What findings of this code are about."""
        return TITLES[self.code]

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        if not self.file and self.line:
            place = f"line {self.line}"
        head = f"{self.code} {place}".rstrip()
        return f"{head}: {self.cause} {self.consequence} {self.fix}"


class RefusedPort(Exception):
    """Carries the finding that ends a port before its later steps can be made."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding
