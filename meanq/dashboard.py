"""`python -m meanq.dashboard`, see meanq.mirrors.dashboard."""

import sys

from meanq.mirrors.dashboard import main

if __name__ == "__main__":
    sys.exit(main())
