"""Trained agents at play: the one part of analysis that needs the training code.

May import runs, and everything of meanq.
"""
