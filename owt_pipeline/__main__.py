"""`python -m owt_pipeline` is `owt`."""

import sys

from owt_pipeline.cli import main

sys.exit(main())
