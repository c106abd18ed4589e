"""Operations on access: tokens, the acting identity, audit records."""
