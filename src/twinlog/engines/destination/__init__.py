"""How every engine writes to the destination."""
