"""The demo: a bookshop's database, and a story told about it with measured figures.

Belongs here: the bookshop (`bookshop`, `bookshop.sql`), the story (`story`), running jobs over Dagster's GraphQL as
its UI does (`dagster_api`). Does not: anything that a deployment of yours would need.
"""
