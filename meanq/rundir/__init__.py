"""The run directory: the one contract between training and everything that reads runs.

layout (names, states, columns), writer, reader, progress (what a run is doing), identity, lock, checkpoint, reuse. May
import config and replay.
"""
