"""The real things behind the ports: processes, files, databases."""
