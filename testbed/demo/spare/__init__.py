"""Loses a GPU of a training and compares how the job goes on: ``lightloom demo spare``."""

from testbed.demo.spare.experiment import SPARE_SITE, run
from testbed.demo.spare.report import render

__all__ = ["SPARE_SITE", "render", "run"]
