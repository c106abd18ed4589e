"""Operations on flows: declare, grow, resolve, read."""
