"""Stores that earlier versions wrote."""

from __future__ import annotations

from pathlib import Path

SCHEMA_1 = Path(__file__).with_name("schema-1.sqlite")
"""Written by the last version of schema 1: four jobs, three transactions, one of them under way."""
SCHEMA_2 = Path(__file__).with_name("schema-2.sql")
"""As SQL, of the last version whose circuits all ended at an endpoint: two jobs, a regroup of them
under way, and a port out of use."""
