"""What runs are doing and what became of them: `meanq status`, and the table at the end of a command.

May import config and rundir.
"""
