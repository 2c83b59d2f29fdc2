"""Public checks: any op, on any machine, in any form, against its oracle and bit by bit."""

from mkport.testing.check import FORMS, Form, Verdict, check_op
from mkport.testing.rung import run_rung

__all__ = ["FORMS", "Form", "Verdict", "check_op", "run_rung"]
