"""`python -m bench` runs every benchmark with short settings."""

from bench import backlog, lifecycle, signal, worker

if __name__ == "__main__":
    for part in (lifecycle, worker, signal, backlog):
        part.main()
