"""Stories: many things happen to a controller at once, in an order that a seed draws."""
