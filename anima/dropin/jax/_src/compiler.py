"""`jax._src.compiler`: what is patched by libraries that count or forbid compilations."""
