"""One adapter per system; each runs in the virtualenv of its system, as `bench.peers.adapter`."""
