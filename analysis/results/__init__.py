"""What the repository keeps of a study: `python -m analysis.results RUNS --scale SCALE --out DIRECTORY`."""
