"""Arguments and printing. Nothing here decides anything."""
