"""Configuration: the typed schema of conf/ with the meaning and bounds of each field, and checks that span fields.

Imports nothing else of meanq. Rules, environments and the like are named by import path (`extensions`).
"""
