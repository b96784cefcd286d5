"""The conformance kit: `python -m aggregator.conformance --engine NAME|PATH` checks an engine against the reference."""
