"""Training one run: the loop, its session (begin, resume, save, stop), evaluation, statistics and the machine.

May import config, envs, replay, learning and rundir.
"""
