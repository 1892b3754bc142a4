"""`python -m tracer` is the `tracer` command."""

from tracer.cli.commands import main

if __name__ == "__main__":
    main()
