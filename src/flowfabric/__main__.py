"""`python -m flowfabric`: the command line, where its script is not on the path."""

from flowfabric.cli import main

if __name__ == "__main__":
    main()
