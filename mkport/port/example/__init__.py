"""The op that `mkport new` starts a new one from: its files, with `example` for the name."""
