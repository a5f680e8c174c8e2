"""The run directory, the one contract between training and everything that reads runs.

File names, identity, writing, reading, locking, checkpoints and reuse of finished runs. May import config, replay.
"""
