"""Questions about a run that its ledger answers: does it hold, and what became of a URL."""
