"""Hours of threads in minutes: ``python -m tests.soak``."""
