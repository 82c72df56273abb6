"""What people run and look at: summaries, pictures, the demonstration."""
