"""What moves the partitions of a mirror."""
