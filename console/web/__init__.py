"""The console's files: ``static/`` is ours, ``vendor/`` is not. The controller serves both."""
