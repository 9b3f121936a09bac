"""What was measured for the documents: scripts, their results, and the command that writes the tables (README.md)."""
