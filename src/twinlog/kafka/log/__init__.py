"""Record batches: read, checked, patched, merged. Pure."""
