"""Comparisons with other engines, run side by side on this machine; see README.md. Not part of the package."""
