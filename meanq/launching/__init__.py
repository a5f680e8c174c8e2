"""From a command line to runs: plans, studies, cost estimates, and launchers for this machine or a cluster.

May import all but mirrors and status.
"""
