"""What follows the data: topics, configurations, group offsets, ACLs, read-only topics."""
