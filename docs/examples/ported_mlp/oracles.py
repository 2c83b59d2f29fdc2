"""What each kernel of the MLP must compute, in PyTorch: the arguments' tensors in, outputs out."""

import torch


def rms_norm(t):
    """y = x / sqrt(mean x^2 + eps) * w, row by row."""
    return {"y": t.x / (t.x.square().mean(dim=1, keepdim=True) + t.eps).sqrt() * t.w}


def gemm(t):
    """y = x w^T."""
    return {"y": t.x @ t.w.T}


def silu_mul(t):
    """y = silu(the first columns of x) * the last."""
    gate, values = t.x.split(t.hidden, dim=1)
    return {"y": torch.nn.functional.silu(gate) * values}
