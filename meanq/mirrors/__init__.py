"""Copies of runs in W&B and TensorBoard, made from run directories by a process of their own.

May import config and rundir.
"""
