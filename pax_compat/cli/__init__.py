"""The command line: flags, process settings, errors without a traceback."""
