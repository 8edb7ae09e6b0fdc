"""Tests of mlx-autobind, against the real mlx, the real libraries and real interpreters."""
