"""What can be said of a plan or a run: privacy, bytes, memory, time, fairness."""
