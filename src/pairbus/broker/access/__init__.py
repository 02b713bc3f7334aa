"""Who may do what: keys, access rules, tokens, and the limits of connections that have shown none."""
