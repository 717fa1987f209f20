"""What the operator declares in `tables.yaml`: sources, tables, keys, contracts, policies, owners.

Belongs here: the typed model (`model`) and reading it from YAML with errors that name the line (`load`).
Does not: addresses chosen at run time (`cdc_platform.deployment`), what the source really holds (`source`).
"""
