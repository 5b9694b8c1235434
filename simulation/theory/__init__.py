"""Theory: laws of round times, optima, regret and its bounds, estimates."""
