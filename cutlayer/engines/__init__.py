"""Who carries the messages, and keeps the folder on disk: in one process, or between machines."""
