"""Many runs in one table: victims, attackers, judges, verdicts and reports."""
