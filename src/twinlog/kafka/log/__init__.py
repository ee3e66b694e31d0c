"""Record batches: parsed, checked, patched, merged. Pure."""
