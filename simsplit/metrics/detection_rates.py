"""This module scores how well detectors separate malicious clients from honest ones."""

from collections.abc import Collection, Mapping

import numpy as np

Client = int


def score_detection(
    suspicion: Mapping[Client, float], flagged: Collection[Client], malicious: Collection[Client]
) -> dict[str, float | int]:
    """Compute the counts and figures of one detector over the clients that it judged.

    Undefined figures are left out: without malicious clients all but the false positive rate.
    """
    clients = list(suspicion)
    bad = np.array([client in malicious for client in clients], dtype=bool)
    hit = np.array([client in flagged for client in clients], dtype=bool)
    caught, alarms = int((bad & hit).sum()), int((~bad & hit).sum())
    figures: dict[str, float | int] = {
        "clients": len(clients),
        "malicious": int(bad.sum()),
        "flagged": int(hit.sum()),
        "caught": caught,
    }
    if (~bad).any():
        figures["fpr"] = alarms / int((~bad).sum())
    if not bad.any():
        return figures
    figures["recall"] = caught / int(bad.sum())
    if hit.any():
        figures["precision"] = caught / int(hit.sum())
    figures["f1"] = 2 * caught / int(bad.sum() + hit.sum())
    if (~bad).any():  # these do not depend on the detector's threshold
        from sklearn.metrics import roc_auc_score, roc_curve

        scores = np.array([suspicion[client] for client in clients])
        fpr, tpr, _ = roc_curve(bad, scores, drop_intermediate=False)
        figures["auroc"] = float(roc_auc_score(bad, scores))
        figures["tpr_at_1pct_fpr"] = float(tpr[fpr <= 0.01].max())
    return figures
