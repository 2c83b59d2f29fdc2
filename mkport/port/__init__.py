"""Porting kernels of one's own: what a file holds, whether it can be a task, the task itself."""
