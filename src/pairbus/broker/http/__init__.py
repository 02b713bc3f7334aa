"""What clients ask over HTTP: the management API and its documents."""
