"""The CPU machine: worker threads walk real record lists, in one compiled Python file."""
