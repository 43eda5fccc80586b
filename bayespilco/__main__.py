"""The command `bayespilco`, also as `python -m bayespilco`.

A machine beside a plant may have NumPy only (docs/howto/real-plant.md). The command needs more, and says so.
"""

import sys

from bayespilco import interrupts


def main() -> None:
    """Run the command. If a package is missing, say which, and what works without it."""
    interrupts.guard()
    try:
        from bayespilco.cli import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "bayespilco"):
            raise
        sentence = (
            f"bayespilco: the command needs {missing}, which is not installed: pip install {missing}, or install "
            "bayespilco with all that it depends on. With NumPy only, there are `bayespilco.controller`, "
            "`bayespilco.plants` and `bayespilco.logs`, and `python -m bayespilco.controller FILE`."
        )
        print(sentence, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
