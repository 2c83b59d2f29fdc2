"""Serving on a GPU, measured and checked: a model with random weights behind the real server.

    python -m mkport.engine.bench.gpu_serving --out DIR

One process serves, after it has timed decode steps and prompts without any server; this one is the
client. `--tiny` does the same with a tiny model on the CPU machine, to see that it runs.
"""
