"""How users reach operations. They parse, call an operation, and print."""
