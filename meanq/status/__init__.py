"""`python -m meanq.status`: what every run below a directory is doing. May import config and rundir."""
