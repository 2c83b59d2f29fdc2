"""The machines that run a schedule: the CPU machine, and a single-threaded interpreter."""
