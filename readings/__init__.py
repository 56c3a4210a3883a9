"""What can be measured of an object: each reading is declared once, in the catalogue."""
