"""Models how long a synchronous training step takes at a given placement.

``profile`` has the step of one job at a given rate, ``rings`` the fair rates of many jobs,
``sites`` those rates for a cabled site; ``calibrate`` fits profiles to measured steps.

Measured step times do *not* separate these, so this package reports them as an interval:
compute and communication of a job seen at one rate only; the overlap ``hide`` as long as
communication outlasts what may be hidden (``hide`` then trades with compute exactly: only
``(1 - hide) * compute_s`` shows); model bytes and link rate (only their quotient ``ring_s``
shows); and start-up time, which no step contains.
"""
