"""`python -m bench` runs every benchmark with short settings."""

from bench import backlog, flow, lifecycle, signal, worker

if __name__ == "__main__":
    for part in (lifecycle, worker, signal, flow, backlog):
        part.main()
