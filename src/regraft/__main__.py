"""``python -m regraft`` is the same as ``regraft``."""

from regraft.app.cli import main

if __name__ == "__main__":
    main()
