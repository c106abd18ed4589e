"""The HTTP server: every operation of the engine, for programs in any language."""
