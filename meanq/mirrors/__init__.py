"""Copies of runs in W&B and TensorBoard, made from run directories by a separate process.

A new logger takes one file here with a subclass of sink.Sink, a line in LOGGERS of meanq.config.extensions, and a YAML
file in conf/logger. May import config and rundir.
"""
