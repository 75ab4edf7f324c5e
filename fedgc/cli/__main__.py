"""`python -m fedgc.cli`: the command line with a given interpreter, independent of the path."""

from fedgc.cli import main

if __name__ == "__main__":
    main()
