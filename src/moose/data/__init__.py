"""From logs to a :class:`~moose.data.dataset.Dataset`, its parts and its files."""
