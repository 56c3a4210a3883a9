"""Compares a mixture of trainings under Slurm, without lightloom and with it."""

from testbed.demo.slurm.experiment import RESULT_FILE, run
from testbed.demo.slurm.report import render

__all__ = ["RESULT_FILE", "render", "run"]
