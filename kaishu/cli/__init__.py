"""The command line: one module a subcommand, and what they share.

Owns everything between a person's terminal and the Python API; computes nothing itself. Starts at main.py.
"""
