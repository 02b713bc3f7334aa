from .stage import stage as stage
