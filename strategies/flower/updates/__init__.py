"""What is done with the arrays of updates: compared, averaged, piece by piece."""
