"""What the repository keeps of a study: `meanq results RUNS --scale SCALE --out DIRECTORY`.

collect: tables from runs. provenance: where the runs come from and how to repeat them. store: the kept files. page: the
README.md. __main__: the command.

May import everything but playing and report.
"""
