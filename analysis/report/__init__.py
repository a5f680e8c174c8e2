"""One HTML page with every table and figure of a set of runs: `python -m analysis.report RUNS`.

May import everything but playing.
"""
