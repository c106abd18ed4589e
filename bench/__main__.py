"""`python -m bench` runs every benchmark with short settings."""

from bench import backlog, lifecycle, worker

if __name__ == "__main__":
    for part in (lifecycle, worker, backlog):
        part.main()
