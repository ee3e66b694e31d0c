"""What an operator asks for."""
