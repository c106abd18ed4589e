"""The engine through a server: which operations may be called, how they travel, and the client."""
