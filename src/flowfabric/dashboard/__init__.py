"""The dashboard: pages, styles and scripts that a server hands out as they are."""
