"""`python -m meanq`, see meanq.cli."""

import sys

from meanq.cli import main

if __name__ == "__main__":
    sys.exit(main())
