"""Replay memory: frames stored once, multi-step transitions, priorities in a sum tree.

May import config.
"""
