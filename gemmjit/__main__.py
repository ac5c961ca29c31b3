"""``python -m gemmjit``, where the script ``gemmjit`` is not on the path."""

from gemmjit.cli import main

raise SystemExit(main())
