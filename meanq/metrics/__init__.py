"""Metrics: `definitions` computes them, `registry` has one entry for each that tables, figures and mirrors read.

numpy only. May import config.
"""
