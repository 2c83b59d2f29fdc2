"""The reference engine: loading, cache, running, sampling. It imports mkport, never the reverse."""
