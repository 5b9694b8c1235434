"""What is known without playing: laws of round times, optima, regret bounds."""
