"""`python -m bench` runs every benchmark with short settings."""

from bench import lifecycle

if __name__ == "__main__":
    lifecycle.main()
