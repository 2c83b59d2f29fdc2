"""One check, in a process that may hang or crash: `python -m mkport.learn.child JUDGE FILE OUT`.

OUT becomes a JSON object with the verdict; a process that leaves none has crashed. Where Python was
at that moment, or when SIGUSR1 came, stands in OUT.where.
"""

import contextlib
import faulthandler
import importlib.util
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from mkport.files import write_text
from mkport.learn.cut import MISSING, first_missing
from mkport.learn.report import Report, Skipped, Wrong

YOURS = "mkport_learn_yours"  # the learner's file as a module


def examine(judge: Path, file: Path, look: bool = True) -> dict[str, Any]:
    """The verdict on a learner's file: "state" (passed, failed, blank, skipped), "lines", "score".

    `look` finds an empty blank by reading the file; otherwise running into it finds it.
    """
    report = Report()
    started = time.process_time()
    state = "blank" if look and _is_blank(file, report) else _run(judge, file, report)
    return {
        "state": state,
        "lines": report.lines,
        "score": report.best,
        "cpu_s": time.process_time() - started,
    }


def _run(judge: Path, file: Path, report: Report) -> str:
    try:
        check = load(judge, "mkport_learn_judge").check
        check(file if file.suffix == ".cu" else load(file, YOURS), report)
    except Wrong:
        return "failed"
    except Skipped as reason:
        report.say(str(reason))
        return "skipped"
    except NotImplementedError as error:
        report.say(f"{error}")
        return "blank"
    except Exception as error:
        if MISSING in str(error):
            report.say(MISSING)
            return "blank"
        if isinstance(error, AttributeError) and getattr(error.obj, "__name__", "") == YOURS:
            report.say(f"NO  your file has no `{error.name}` any more, which the check calls")
            return "failed"
        report.say(f"NO  it stopped with {type(error).__name__}: {error}", *_where(error, file))
        return "failed"
    except SystemExit as error:
        report.say(f"NO  it ended the program, with {error.code}: a check needs it to go on")
        return "failed"
    return "passed"


def _is_blank(file: Path, report: Report) -> bool:
    line = first_missing(file)
    if line is None:
        return False
    report.say(f"{MISSING}: line {line} of {file}; put it there, in place of that line")
    return True


def _where(error: Exception, file: Path) -> list[str]:
    """The learner's lines that led to it, or what in the check could not use the result."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return [f"    line {error.lineno}: {(error.text or '').strip()}"]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f for f in frames if Path(f.filename).resolve() == file.resolve()]
    if lines:
        return [f"    line {frame.lineno}: {frame.line}" for frame in lines[-2:]]
    told = [f"    not in your file, but with what it gave: {frames[-1].line}"] if frames else []
    if "NoneType" in str(error):
        told.append("    a function without a `return` gives None")
    return told


def load(path: Path, name: str) -> ModuleType:
    """A file as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    judge, file, out = map(Path, sys.argv[1:])
    with Path(f"{out}.where").open("w") as told:
        faulthandler.enable(told)
        with contextlib.suppress(AttributeError):  # a system without this signal
            faulthandler.register(signal.SIGUSR1, told, all_threads=False)
        write_text(out, json.dumps(examine(judge, file)))
