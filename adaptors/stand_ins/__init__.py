"""Stand-ins for what Lingvo imports or reads and a JAX run does not have."""
