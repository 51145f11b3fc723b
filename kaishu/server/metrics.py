"""Placeholder: see the helpers' task."""

from __future__ import annotations


class Metrics:
    """What is counted."""
