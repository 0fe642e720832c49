"""What crosses the cut, as bytes: frames, the ledger that counts them, recorded transcripts, codecs."""
