"""What every part of lightloom stands on, and nothing that belongs to one of them."""
