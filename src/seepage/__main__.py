"""`python -m seepage` is `seepage`."""

from seepage.cli import main

if __name__ == "__main__":
    main()
