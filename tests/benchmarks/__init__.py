"""What the agent costs: ``python -m tests.benchmarks`` measures it and writes the page."""
