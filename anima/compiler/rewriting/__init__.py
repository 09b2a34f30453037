"""From jaxpr to jaxpr: calls opened, invariant work hoisted, composite operations rewritten, algebra."""
