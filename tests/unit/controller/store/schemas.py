"""Stores that earlier versions wrote."""

from __future__ import annotations

from pathlib import Path

SCHEMA_1 = Path(__file__).with_name("schema-1.sqlite")
"""Written by the last version of schema 1: four jobs, three transactions, one of them under way."""
