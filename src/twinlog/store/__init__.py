"""The control topics on the destination cluster: record formats, readers, writers."""
