"""Prompts by PyTorch operators, for machines whose steps hold few tokens: a chunk of one sequence a
call writes its keys and values where decode steps read them, and nothing else comes out.

The step graph says what to compute, as for the machines. Which token follows a prompt is a decode
step's business: it runs the prompt's last token.
"""

from mkport.engine.prefill.prefill import Prefill

__all__ = ["Prefill"]
