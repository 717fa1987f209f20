"""The crash lab: kills and disturbs capture and sink at named steps, over random histories, and looks what is left.

Pure, by seed alone: `history` (what the source did), `plan` (what the log gets, and which fault comes when), `model`
(what must be left, and the verdict). Acting: `child` and `sinklab` (the sink, on a real catalog and log),
`capturelab` (PostgreSQL and Debezium too), `readers` (three independent readers of the table).
`product` holds every touch point with the product. Nothing in the product knows of the lab but `cdc_platform.faults`.

    make crashlab FAULTS=300 SEED=1
"""
