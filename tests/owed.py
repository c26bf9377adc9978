"""Rows that wait to be measured again, by table or board and tier.

They were measured on models that each machine pretrained itself. The models ship since, and the
digest of a row on one of them covers its files, so these rows are stale, and pages say so. Who
measures a table again takes its line away.
"""

OWED = {
    "pidi/figure8.small": 216,
}
