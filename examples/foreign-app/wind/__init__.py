"""Power curves of wind turbines, learned on site: an ordinary Flower app."""
