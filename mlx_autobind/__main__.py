"""``python -m mlx_autobind``."""

import sys

from mlx_autobind.cli import main

sys.exit(main())
