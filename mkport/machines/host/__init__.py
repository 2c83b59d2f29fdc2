"""The host build: composed CUDA files compiled by the system's C++ compiler and run on fibers."""
