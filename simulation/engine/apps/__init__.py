"""Any Flower app in virtual time."""
