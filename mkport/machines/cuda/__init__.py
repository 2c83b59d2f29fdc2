"""The CUDA machine: device header, runtime, compiler and launcher of composed CUDA files."""
