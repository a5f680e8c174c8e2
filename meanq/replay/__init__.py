"""Replay memory: each frame stored once, multi-step transitions, priorities in sum trees.

This package may import config.
"""
