"""JAX's own insides: only those names that libraries are known to read."""
