"""Messages from anywhere to anywhere: move, archive, restore, and `locked` and `carry` for one's own."""
