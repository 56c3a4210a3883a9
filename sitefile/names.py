"""The patterns of names, in files and in requests, unanchored; and words that files share."""

from __future__ import annotations

from typing import Literal

Recording = Literal["counts", "full", "off"]
"""How much of a job's communication is recorded."""

NAME = "[a-z0-9-]{1,63}"
"""Any object in a request."""
SITE_OBJECT = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""What a site file declares: switches, aggregators, servers, endpoints."""
JOB = "[a-z0-9]([a-z0-9-]{0,39}[a-z0-9])?"
"""A job whose containers agents accept."""
PROJECT = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
"""A project; its users' jobs are called ``<project>-…``, and so must fit into a job's name."""
SECRET_NAME = "[a-z0-9][a-z0-9._-]{0,62}"  # noqa: S105 - a pattern
"""A secret of a project: a file in the site's secret directory."""
