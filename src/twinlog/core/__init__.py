"""Pure core: record batches, the append machine, planning, states. No socket, clock or thread."""
