"""The version, for code that must not import the package's API (hatch reads it, too)."""

__version__ = "0.1.0.dev0"
