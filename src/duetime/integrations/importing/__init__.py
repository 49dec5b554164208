"""Schedules that live elsewhere: read, translated, and reviewed before anything is written.

One module per source makes `[Found]` of what it has; `plan` compares them with what is stored.
"""
