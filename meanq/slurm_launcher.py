"""Jobs that meanq 0.1 submitted import this module; they fail with a clear line."""

raise ImportError("this job was submitted by an older version of meanq; cancel it and give its command again")
