"""``python -m moose`` does what the command ``moose`` does."""

from moose.cli import main

if __name__ == "__main__":
    main()
