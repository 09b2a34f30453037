"""From groups to loops: one kernel a group, routines for what needs loops of its own."""
