"""The console script: the program of the wheel in the place of this process."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).with_name("bin") / "widehead"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
