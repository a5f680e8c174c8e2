"""Where SLURM jobs of meanq 0.1 look for their launcher."""

raise ImportError("this job was submitted by an older version of meanq; cancel it and give its command again")
