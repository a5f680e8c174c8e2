"""The learning algorithm: stacked networks, value forms, bootstrap rules, learner, agent, exploration, augmentation.

`build` creates these objects from a configuration. This package may import config and replay.
"""
