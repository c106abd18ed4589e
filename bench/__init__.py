"""Benchmarks. Figures are ratios within one run; see RESULTS.md for what was measured when."""
