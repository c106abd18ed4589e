"""`python -m bench` runs every benchmark with short settings."""

from bench import backlog, flow, lifecycle, limits, signal, worker

if __name__ == "__main__":
    for part in (lifecycle, worker, signal, flow, limits, backlog):
        part.main()
