"""Static figures, each a function of a table. `meanq figures RUNS --out DIRECTORY` draws them.

May import runs, metrics, aggregate and paper.
"""
