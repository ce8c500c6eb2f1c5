"""`praxis` and `paxml` as importable names of what is here.

After `install()`, code that was written for Pax imports its modules:

    >>> from adaptors import pax_names
    >>> pax_names.install()
    >>> from praxis import layers
    >>> from praxis.layers import linears
    >>> linears.Linear is layers.Linear
    True

The names are ours; nothing of Pax is needed. `table` says which of our modules
a module of Pax stands for.
"""

from adaptors.pax_names.finder import install, is_installed

__all__ = ['install', 'is_installed']
