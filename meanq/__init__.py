"""Ensemble deep Q-learning experiments: train MeanQ and its baselines, and measure the error of their values."""

__version__ = "0.1.0"
