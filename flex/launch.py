"""What a Flex Template's launcher runs: FLEX_TEMPLATE_PYTHON_PY_FILE of the image names this
file."""

import sys

from owt_pipeline.flex_template import main

sys.exit(main(sys.argv[1:]))
