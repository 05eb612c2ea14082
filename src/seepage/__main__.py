"""The program `seepage`, and `python -m seepage`."""

from seepage._signals import exit_on_signals


def main() -> None:
    """Run the command line; a signal while it is imported gets a sentence, too."""
    with exit_on_signals():
        from seepage.cli import main as run

        run()


if __name__ == "__main__":
    main()
