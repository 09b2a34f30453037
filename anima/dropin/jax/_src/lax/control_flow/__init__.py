"""`jax._src.lax.control_flow`: loops and branches."""
