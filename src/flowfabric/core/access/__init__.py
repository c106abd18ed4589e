"""Who may do what: access tokens, their scopes, and what is kept of administrative acts."""
