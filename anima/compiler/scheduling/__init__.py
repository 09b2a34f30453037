"""From loops to loops: order, tiles, lanes, threads."""
