"""Metrics of runs: bias, standard deviation and Jensen gap of values, returns, cost, and how members differ.

`python -m analysis.metrics RUNS` prints them as a table.
"""
