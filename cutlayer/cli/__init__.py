"""The command line: one file a group of commands; heavy imports stay inside the commands."""
