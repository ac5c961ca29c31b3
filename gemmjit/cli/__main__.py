"""``python -m gemmjit.cli``."""

from gemmjit.cli import main

raise SystemExit(main())
