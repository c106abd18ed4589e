"""Flows as pictures: `picture` says what is drawn, `place` where; then text, Mermaid or SVG."""
