"""Test the paper's conclusions on runs: `meanq findings RUNS`.

claims: the rules, and the comparisons of each conclusion. sample: the runs of a method and their numbers.
correlation: the test of F1. decide: comparisons and verdicts. __main__: the command.

May import runs and intervals.
"""
