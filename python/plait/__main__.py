"""`python -m plait`: the command line."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program that comes with the package, with the same arguments."""
    program = Path(__file__).parent / "bin" / "plait"
    os.execv(program, ["plait", *sys.argv[1:]])


if __name__ == "__main__":
    main()
