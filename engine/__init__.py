"""The reference engine: loading, key-value cache, running, sampling. It imports mkport, never the reverse."""
