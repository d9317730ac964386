"""`python -m sphereflow.cli`, for checkouts that are not installed."""

import sys

from sphereflow.cli import main

sys.exit(main())
