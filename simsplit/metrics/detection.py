"""How well malicious clients are told from honest ones: thin calls into scikit-learn."""

from collections.abc import Collection, Mapping

import numpy as np

Client = int


def detection(
    suspicion: Mapping[Client, float], flagged: Collection[Client], malicious: Collection[Client]
) -> dict[str, float | int]:
    """Counts and figures of one detector over the clients that it judged.

    Figures that do not exist are left out: of a clean round all but the false positive rate.
    """
    clients = list(suspicion)
    bad = np.array([client in malicious for client in clients], dtype=bool)
    hit = np.array([client in flagged for client in clients], dtype=bool)
    caught, alarms = int((bad & hit).sum()), int((~bad & hit).sum())
    found: dict[str, float | int] = {
        "clients": len(clients),
        "malicious": int(bad.sum()),
        "flagged": int(hit.sum()),
        "caught": caught,
    }
    if (~bad).any():
        found["fpr"] = alarms / int((~bad).sum())
    if not bad.any():
        return found
    found["recall"] = caught / int(bad.sum())
    if hit.any():
        found["precision"] = caught / int(hit.sum())
    found["f1"] = 2 * caught / int(bad.sum() + hit.sum())
    if (~bad).any():
        scores = np.array([suspicion[client] for client in clients])
        found |= ranking(bad, scores)
    return found


def ranking(bad: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """What scores are worth whatever the threshold."""
    from sklearn.metrics import roc_auc_score, roc_curve

    fpr, tpr, _ = roc_curve(bad, scores)
    return {
        "auroc": float(roc_auc_score(bad, scores)),
        "tpr_at_1pct_fpr": float(tpr[fpr <= 0.01].max()),
    }
