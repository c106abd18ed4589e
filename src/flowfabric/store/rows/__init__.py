"""How values become rows and rows become values, the same for every store."""
