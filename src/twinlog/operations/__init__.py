"""Operations that an operator starts."""
