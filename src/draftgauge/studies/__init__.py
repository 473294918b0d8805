"""The two papers as runnable studies."""
