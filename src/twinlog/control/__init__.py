"""Control plane: mirrors and their states, kept in the destination cluster."""
