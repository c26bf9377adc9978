"""Rows that wait to be measured again, by table or board and tier.

They were measured on models that each machine pretrained itself. The models ship since, and the
digest of a row on one of them covers its files, so these rows are stale, and pages say so. Who
measures a table again takes its line away.
"""

OWED = {
    "p3eft/figure2.small": 9,
    "p3eft/figure3.small": 45,
    "p3eft/table1.small": 42,
    "pidi/figure8.small": 216,
    "pidi/table1.small": 31,
    "pidi/table5.small": 30,
    "pidi/table6.small": 30,
    "boards/generation.small": 410,
}
