"""Where the time of a step goes, on a machine that is made up: a sketch and a summary."""

from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import deal
from mkport.trace import render, summarise
from mkport.trace.simulate import Costs, simulate
from mkport.trace.sketch import sketch

fields = config_of("qwen3_moe", "tiny")
step = family_of(fields).build(parse_config(fields), StepShape(rows=1, context=64))
trace = simulate(deal(step, workers=3), Costs(bytes_per_s=10e9), "a tiny model, 3 workers")
print(sketch(trace))
print()
print(render(summarise(trace)))
