"""Files. Writes are atomic, and everything that is read is treated as untrusted."""
