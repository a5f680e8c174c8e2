"""Scores of the paper and of others, and where ours stand among them.

May import aggregate.
"""
