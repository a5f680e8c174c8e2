"""The paper's conclusions, decided from runs: `python -m analysis.findings RUNS`."""
