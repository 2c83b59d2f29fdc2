"""A process that another one starts does not outlive it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import subprocess, sys, time
from mkport.engine.child import prepare
child = subprocess.Popen(["sleep", "60"], start_new_session=True, preexec_fn=prepare())
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = Path("/proc", parent.stdout.readline().decode().strip(), "stat")
        assert child.exists()
        parent.kill()
    until = time.monotonic() + 5
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.02)
