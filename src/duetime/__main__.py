"""`python -m duetime`."""

from duetime.cli import main

if __name__ == "__main__":
    main()
