"""`python -m meanq.wandb_upload`, see meanq.mirrors.upload."""

import sys

from meanq.mirrors.upload import main

if __name__ == "__main__":
    sys.exit(main())
