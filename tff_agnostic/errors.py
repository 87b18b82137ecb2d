"""The exception for mistakes that a user can mend."""


class UserError(ValueError):
    """A value, file or flag is not what it has to be.

    The message is one line: what was expected, what was found, and where. Binaries print it without
    a traceback and exit with status 2; library users catch it as a `ValueError`.
    """
