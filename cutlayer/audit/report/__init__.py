"""What an audit found, as files a person reads."""
