"""Public tools for testing: the deterministic simulator, fakes and builders."""
