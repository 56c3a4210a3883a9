"""Runs the paper's experiment on the emulated rack: ``lightloom demo a|b``."""

from testbed.demo.cases import CaseArm
from testbed.demo.errors import DemoError
from testbed.demo.experiment import PAPER_SITE, run
from testbed.demo.report import render
from testbed.demo.rule import Base

__all__ = ["PAPER_SITE", "Base", "CaseArm", "DemoError", "render", "run"]
