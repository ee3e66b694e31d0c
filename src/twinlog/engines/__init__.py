"""The engines that move the partitions of a mirror."""
