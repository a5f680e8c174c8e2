"""The science: networks of all members at once, value forms, bootstrap rules, the learner, the agent, exploration.

`build` makes them from a configuration. May import config and replay.
"""
