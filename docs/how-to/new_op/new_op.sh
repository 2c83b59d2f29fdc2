mkport new half_of --ops out/ops
mkport check half_of --ops out/ops --form standalone --dtype f32
mkport compose docs/examples/mlp/mlp.toml --out out/mlp.py
