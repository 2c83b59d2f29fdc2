"""Proves a schedule safe before it runs, or refuses it in words. Nothing here runs a schedule."""

from mkport.verify.footprint import Footprint
from mkport.verify.report import Problem, Refused, Report
from mkport.verify.verifier import verify

__all__ = ["Footprint", "Problem", "Refused", "Report", "verify"]
