"""For whose packet the CPU works: probes where packets change hands, and the sample's own frames as their judge."""
