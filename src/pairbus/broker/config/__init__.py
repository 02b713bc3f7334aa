"""Configuration files, and how a namespace is made to match one."""
