"""Operations on waits: suspend, signal, keys."""
