"""One HTML page with every table and figure of a set of runs: `meanq report RUNS`.

May import everything but playing.
"""
