"""The course's machinery: exercises cut from their solutions, checks under a watchdog, pictures.

The recipes and exercises themselves are in `recipes/`; the verb that a learner types is in `cli`.
"""
