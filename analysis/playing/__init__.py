"""Trained agents at play: the one part of analysis that needs the training code."""
