"""What every request and every answer goes through, whatever its route is."""
