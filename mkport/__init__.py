"""mkport: port ordinary kernels into one verified, persistent megakernel."""

__version__ = "0.1.0"
