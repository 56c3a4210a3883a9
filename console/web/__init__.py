"""The console's files: ``static/`` is our code, ``vendor/`` is third-party code."""
