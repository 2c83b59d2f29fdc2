"""The errors a user can cause. Everything else that escapes is a bug and keeps its traceback."""


class UserError(Exception):
    """A mistake the user can fix: one paragraph naming the thing, the place and the fix.

    The command line prints the message alone and exits with code 2.
    """
