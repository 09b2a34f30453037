"""Where the values of loops live: in registers, or in memory that they share."""
