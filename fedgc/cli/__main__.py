"""`python -m fedgc.cli`: the command line by the interpreter that is asked, whatever is on the path."""

from fedgc.cli import main

if __name__ == "__main__":
    main()
