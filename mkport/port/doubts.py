"""What is to be thought of an original that went wrong on made-up arguments: that it is not well
defined, whatever the arguments; that it or they may be at fault; or that they did not fit."""

from collections.abc import Callable, Mapping, Sequence

from mkport.port.check import FITS
from mkport.port.finding import Finding
from mkport.port.kernel import Kernel
from mkport.port.outcome import TOLD, asked_for

SURE = 2  # trials, not of the smallest, that agree
ORDERED = ("MK201", "MK202", "MK205", "MK207")  # faults of order, not of sizes
WHOLE = ("i8", "u8", "i16", "i32", "i64")


class Doubts:
    """The trials so far that went wrong, each with what the checker found."""

    def __init__(self, kernel: Kernel, modes: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.tried: list[tuple[Finding, ...]] = []
        self.large = 0  # trials that were not of the smallest, and had room
        # places that are read from a buffer may be twice the same where real ones are not
        self.guided = any(
            modes.get(param.name) in ("read", "update", "immutable") and param.dtype in WHOLE
            and not param.boxed for param in kernel.params
        )  # fmt: skip

    def add(self, found: Sequence[Finding], small: bool) -> bool:
        """Notes a trial; `small` is one with hardly a thread at work. True where it settles the
        matter: a fault of a block's own threads that no argument mends."""
        self.tried.append(tuple(found))
        fits = not any(map(_misfit, found))
        if not small and fits:
            self.large += 1
        return fits and any(_within(finding) for finding in found)

    def certain(self, clean: bool) -> tuple[Finding, ...]:
        """What makes the original not well defined, whatever its arguments are; `clean` says that
        a trial that was not of the smallest went well."""
        fitted = [found for found in self.tried if not any(map(_misfit, found))]
        own = [tuple(f for f in found if _within(f)) for found in fitted]
        if settled := next((found for found in own if found), ()):
            return settled
        if clean or self.guided or self.large < SURE:
            return ()
        here = fitted[: self.large]
        places = set.intersection(*({(f.code, f.line) for f in found} for found in here))
        return tuple(
            f
            for f in here[0]
            if (f.code in ("MK201", "MK202") or _outside(f)) and (f.code, f.line) in places
        )

    def words(self, place: Callable[[int], tuple[str, int]]) -> str:
        """How often what went wrong, for faults that arguments or the kernel may be to blame for;
        "" where there are none."""
        faults = [
            next(f for f in found if f.code in ORDERED) for found in self.tried
            if any(f.code in ORDERED for f in found) and not any(map(_misfit, found))
        ]  # fmt: skip
        told = []
        for code in dict.fromkeys(f.code for f in faults):
            same = [f for f in faults if f.code == code]
            file, line = place(same[0].line) if same[0].line else ("", 0)
            where = f" in {file}:{line}" if line else ""
            told.append(f"{len(same)} times it {TOLD.get(code, 'lost its threads')}{where}")
        return "; ".join(told)

    def unjudged(self, place: Callable[[int], tuple[str, int]]) -> Finding | None:
        """The refusal to guess, where no made-up arguments told what is right."""
        words = self.words(place)
        if not words:
            return None
        first = next(f for found in self.tried for f in found if f.code in ORDERED)
        return Finding(
            "MK181", first.line or self.kernel.line, 1,
            f"Of {len(self.tried)} trials of {self.kernel.name} on made-up arguments, {words}.",
            "Either these arguments are nothing for it, or it is not well defined and has no bits "
            "to keep.",
            f"Give real ones, and it is judged on them: {asked_for(self.kernel)}",
        )  # fmt: skip


def _within(finding: Finding) -> bool:
    """A fault among the threads of one block, with its shared memory or its barriers."""
    if finding.code in ("MK201", "MK207"):
        return "shared" in finding.cause
    return finding.code == "MK205"


def _outside(finding: Finding) -> bool:
    """An index beyond an array of the kernel's own, whose size no argument says."""
    return finding.cause.startswith("Outside:")


def _misfit(finding: Finding) -> bool:
    """What arguments that are no kernel's may do: too small, too large, astray."""
    return finding.code in FITS and not _outside(finding)


def but(words: str, kernel: Kernel) -> str:
    """The line for a port that was compared on some made-up arguments and not on others."""
    return (
        f"but on other made-up arguments, {words}. Give real ones, and it is judged on them: "
        f"{asked_for(kernel)}"
    )
