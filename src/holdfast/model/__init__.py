"""The vocabulary: facts, commands and records as frozen structs. Nothing here acts or decides."""
