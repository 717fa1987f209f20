"""The change log: every captured event of a table, in the order of the source's commits, kept to rebuild from.

Belongs here: the reader's protocol and events as lines (`log`), and the embedded implementation (`segments`).
Does not: where events come from (`capture`), or what they mean for a table's rows (`landing`).
"""
