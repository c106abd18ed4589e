"""The dashboard: its files, and what only it asks for."""
