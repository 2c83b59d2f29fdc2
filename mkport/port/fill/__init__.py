"""The op of the run check that leaves garbage behind."""
