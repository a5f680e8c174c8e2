"""From a command line to runs: plan them, estimate their cost, launch them here or on a cluster, execute each.

`command` is `meanq run`, `hydra_bridge` alone touches Hydra's internals. May import everything but `run`.
"""
