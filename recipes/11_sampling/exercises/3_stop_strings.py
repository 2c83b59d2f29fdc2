"""Stop strings.

Text comes in pieces. When the stop string appears, the output ends just before it; nothing of it
may ever be shown. So a piece whose end could be the beginning of the stop string must be held
back, as long as it could and not longer.

Write `push`: it takes a piece and returns the text that is final now. After the stop string has
been seen it returns nothing any more.
"""


class Stopper:
    """Holds back what may be the beginning of `stop`."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """The text that is final now and was not before."""
        if self.stopped:
            return ""
        text = self.held + piece
        # blank: the stop string is there, or the longest end of text that may begin it is held
        at = text.find(self.stop)
        if at >= 0:
            self.stopped = True
            return text[:at]
        keep = min(len(self.stop) - 1, len(text))
        while not self.stop.startswith(text[len(text) - keep :]):
            keep -= 1
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]
        # end


# === check
HINT = "Try ends of the text from the longest on: text[len(text) - keep:] must begin the stop."
READ = "Text that is final"
WRONG = ("keep = min(len(self.stop) - 1, len(text))", "keep = 0")


def check(yours, report):
    """Every way to cut a text into pieces, for several texts and stops."""
    from itertools import product

    for text, stop in (("abXabY", "abY"), ("aaab", "aab"), ("no stop", "###"), ("endend", "end")):
        wanted = text.split(stop)[0]
        for cuts in product((False, True), repeat=len(text) - 1):
            pieces, piece = [], ""
            for character, cut in zip(text, (*cuts, True), strict=True):
                piece += character
                if cut:
                    pieces.append(piece)
                    piece = ""
            stopper = yours.Stopper(stop)
            shown = [stopper.push(piece) for piece in pieces]
            final = "".join(shown) + ("" if stopper.stopped else stopper.held)
            if final != wanted:
                report.holds(
                    f"{text!r} with stop {stop!r}, cut into {pieces}", False, f"shown {shown}"
                )
        report.holds(f"{text!r} with stop {stop!r}, however cut", True, "")
    stopper = yours.Stopper("###")
    report.equal("nothing is held for no reason", stopper.push("hello"), "hello")
