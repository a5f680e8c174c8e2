"""Timings. They are printed, never tested."""
