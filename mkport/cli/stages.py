"""The stages of the demo: each calls the library and says what came out. Printing is `demo`'s."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mkport.cli.output import progress
from mkport.cli.run import show, stats
from mkport.cli.trace import trace_step
from mkport.engine.decoder import Decoder
from mkport.engine.generate import generate
from mkport.engine.prompt import encode_prompt
from mkport.extras import install
from mkport.files import make_folder, write_text
from mkport.library import all_ops
from mkport.machines.host.build import compiler
from mkport.plan.file import save_schedule
from mkport.port.report import STEPS
from mkport.testing import Form, Verdict
from mkport.testing.ported import port_diff
from mkport.testing.reference import judge_logits
from mkport.testing.suite import has_form, run_unit, units
from mkport.verify import verify

PROBE = "The quick brown fox jumps over the lazy dog, and the moon"  # a few tokens for the step
TRACED_STEPS = 16
KERNELS = Path(__file__).with_name("demo.cu")
SIZES = (
    "w=f32[40,200]",
    "x=f32[200]",
    "scores=f32[40]",
    "odds=f32[40]",
    "classes=40",
    "columns=200",
)
NO_TORCH = f"PyTorch, which the oracles are written in, is not installed; {install('oracle')}"


@dataclass(frozen=True)
class Outcome:
    """What a stage found and where it wrote it."""

    verdict: Literal["ok", "FAILED", "skipped"]
    text: str
    files: tuple[Path, ...] = ()


def standalone() -> Outcome:
    """The ordinary kernels, held to their oracles."""
    return _checked("standalone", "within the tolerance law")


def ported(folder: Path) -> Outcome:
    """The differences between kernels and tasks, written to `folder`; then bits compared."""
    make_folder(folder)
    diffs = [port_diff(op) for op in all_ops().values() if has_form(op, "ported")]
    for diff in diffs:
        write_text(folder / f"{diff.op}.diff", diff.text)
    checked = _checked("ported", "within the law and bit for bit their standalone kernel's")
    return Outcome(checked.verdict, checked.text, (folder,))


def brought(folder: Path) -> Outcome:
    """A CUDA file that knows nothing of mkport, its kernels ported and made one. Where there is a
    C++ compiler, the CPU runs its launches and that kernel, and their bits are compared."""
    if importlib.util.find_spec("tree_sitter_cuda") is None:
        return Outcome("skipped", f"CUDA source cannot be read here; {install('port')}")
    from mkport.port.launched import port_launches
    from mkport.port.several import host_launches

    with progress("porting"):
        made = port_launches(
            KERNELS, host_launches(KERNELS), SIZES, out=folder, run=compiler() is not None,
            compile=False,
        )  # fmt: skip
    if made.verdict != "ported":
        findings = [*made.findings, *(f for one in made.reports.values() for f in one.findings)]
        return Outcome("FAILED", "; ".join(map(str, findings)))
    emit = STEPS.index("emit")
    kernels = "; ".join(f"{name}: {one.steps[emit].lines[0]}" for name, one in made.reports.items())
    joined = (
        "one kernel of both, verified, has the bits of their launches, with 1, 3 and 7 workers"
        if made.same
        else "not run: there is no C++ compiler"
    )
    return Outcome("ok", f"{kernels}\n   {joined}", (folder,))


def composed(decoder: Decoder, file: Path) -> Outcome:
    """The decode step's megakernel, written to `file`."""
    program, schedule = decoder.decode.program, decoder.decode.schedule
    write_text(file, program.source)
    text = (
        f"{decoder.model.name}: {len(program.ops)} ops in "
        f"{program.source.count(chr(10)):,} lines run the {len(schedule.graph.nodes)} nodes of a "
        f"step on {schedule.workers} workers"
    )
    return Outcome("ok", text, (file,))


def verified(decoder: Decoder, file: Path) -> Outcome:
    """The decode step's schedule, proved safe and written to `file`."""
    report = verify(decoder.decode.schedule)
    save_schedule(decoder.decode.schedule, file)
    return Outcome("ok", str(report), (file,))


def step_checked(decoder: Decoder) -> Outcome:
    """The logits of decode steps, with scratch full of NaN before each, against the reference."""
    model = decoder.model
    ids = model.tokenizer.encode(PROBE)[: decoder.context]
    logits = np.empty((len(ids), model.config.vocab), np.float32)
    greedy = True
    with progress("checking the step", total=len(ids) + 1) as advance:
        for position, token in enumerate(ids):
            decoder.machine.poison()  # what a step does not write must not be read
            choice, row = decoder.step([(0, position, token)], [0])
            logits[position] = row[0]
            greedy &= int(choice[0]) == int(np.argmax(row[0]))
            advance(1)
        found = judge_logits(model.config, model.weights, ids, model.weights.dtype, logits)
    text = (
        f"logits of {len(ids)} steps against float64 NumPy: error {found.error:.2e}, allowed "
        f"{found.allowed:.2e} (largest logit {found.scale:.1f}); "
        f"the greedy choices are {'exact' if greedy else 'WRONG'}"
    )
    return Outcome("ok" if found.ok and greedy else "FAILED", text)


def spoken(decoder: Decoder, prompt: str, max_tokens: int, quiet: bool) -> Outcome:
    """Text for a prompt, shown as it comes unless `quiet`."""
    ids = encode_prompt(decoder.model.tokenizer, prompt)
    if not quiet:
        print(f"   > {prompt}\n", flush=True)
    generation = generate(decoder, ids, max_tokens, (lambda piece: None) if quiet else show)
    if not quiet:
        print("\n")
    return Outcome("ok", stats(generation) + (f": {generation.text}" if quiet else ""))


def traced(decoder: Decoder, out: Path) -> Outcome:
    """A decode step's times as pictures, where there is matplotlib, and files in `out`."""
    with progress("tracing"):
        found = trace_step(decoder, TRACED_STEPS, out)
    summary = found.summary
    longest = max(summary.ops, key=lambda op: op.waiting_ns)
    text = (
        f"{summary.tasks:,} tasks in {summary.span_ns / 1e6:.2f} ms: {summary.busy:.0%} busy, "
        f"{summary.waiting:.0%} waiting (most before {longest.op}), {summary.idle:.0%} idle"
    )
    text += f"; {found.note}" if found.note else ""
    return Outcome("ok", text, found.files)


def _checked(form: Form, what: str) -> Outcome:
    """Checks every op in one form, with bfloat16 weights and cache."""
    if importlib.util.find_spec("torch") is None:
        return Outcome("skipped", NO_TORCH)
    library = list(all_ops().values())
    wanted = units(library, [form], ["bf16"])
    verdicts: list[Verdict] = []
    with progress(f"checking the {form} kernels", total=len(wanted)) as advance:
        for unit in wanted:
            verdicts += run_unit(unit, library)
            advance(1)
    bad = [f"{v.op} ({v.shape}: {v.detail})" for v in verdicts if not v.ok]
    if bad:
        return Outcome("FAILED", f"wrong: {', '.join(bad)}")
    return Outcome("ok", f"{len(wanted)} kernels, {len(verdicts)} shapes, all {what}")
