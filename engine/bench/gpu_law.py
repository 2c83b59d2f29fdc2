"""The tolerance law for the GPU benchmark's step: on a model's first layers, at full width."""

from dataclasses import replace
from typing import Any

import numpy as np

from mkport.engine.bench.gpu_source import Source, machine_on
from mkport.engine.bench.torch_step import TorchStep
from mkport.testing.law import measure

LAYERS = 3  # that the law is applied to; of North Mini Code: dense, and twice experts
CLEAR = 2.0**-8  # a choice that leads by less, in deviations of the scores, may be another
DRAWS = 8  # of tokens, in search of rows whose choices are all clear


def first_layers(config: Any, count: int) -> Any:
    """A family's config less the layers behind the first `count`."""
    if config.layers <= count:
        return config
    each = ("windows", "rotated", "dense", "sparse")  # what a family says layer by layer
    cut = {name: getattr(config, name)[:count] for name in each if hasattr(config, name)}
    return replace(config, layers=count, **cut)


def law(source: Source, held: dict[str, Any], batch: int, context: int) -> dict[str, Any]:
    """The law on a step of the first layers, head included, at the last of `context` positions: the
    megakernel's logits against plain PyTorch in float32, bounded by PyTorch's error in bfloat16.

    Rows with a choice of experts that is not `CLEAR` do not count; how many did is told. Of a few
    draws of tokens the one with the most clear rows is taken.
    """
    import cupy
    import torch

    config = first_layers(source.config, LAYERS)
    graph = replace(source, config=config).graph(batch, context)
    machine = machine_on(graph, held, batch, context, config.vocab)[0]
    step = TorchStep(config, machine.tensors, batch, context)
    clear, truth, tokens = np.zeros(batch, bool), np.zeros(0), step.tokens
    with torch.no_grad():
        for seed in range(DRAWS):
            step.tokens = torch.from_numpy(
                np.random.default_rng(seed).integers(0, config.vocab, batch)
            ).to(tokens.device)
            margins: list[Any] = []
            logits = step.run(torch.float32, margins=margins)
            leads = torch.stack(margins).amin(0) if margins else torch.full((batch,), torch.inf)
            now = (leads > CLEAR).cpu().numpy()
            if not seed or now.sum() > clear.sum():
                clear, truth, tokens = now, logits.double().cpu().numpy(), step.tokens
            if clear.all():
                break
        step.tokens = tokens
        plain = step.run(torch.bfloat16).double().cpu().numpy()
    machine.tensors["tokens"][...] = cupy.asarray(tokens.cpu().numpy().astype(np.int32))
    machine.poison()
    machine.step()
    found = measure(machine.tensors["logits"].get()[clear], truth[clear], plain[clear], 2.0**-8)
    return {
        "layers": config.layers,
        "clear_rows": int(clear.sum()),
        "error": found.error,
        "allowed": found.allowed,
        "ok": found.ok if clear.any() else None,
    }
