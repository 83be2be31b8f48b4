"""Our process on a machine: a pump around the core, and the hands it needs."""
