"""Plans by loads: what one aggregator holds is chosen whole, from ever more loads worth having.

A *load* is what one aggregator may hold: units and parts of units that fit there together. A
program that chooses one load per aggregator includes how parts pack, so its relaxation bounds a
regroup better than one that chooses a place per part. There are too many loads to list. They are
generated: the program's duals price every part, and a knapsack per aggregator finds the load that
is worth most (column generation, Gilmore and Gomory 1961).

Units that leave their aggregators are interchangeable if they have as many members on every optical
switch: they are one *kind*, and a load has the number of its arrivals.
"""
