"""Static figures, each a function of a table. `python -m analysis.figures RUNS --out DIRECTORY` draws them.

May import runs, metrics, aggregate and paper.
"""
