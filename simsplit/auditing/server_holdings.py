"""What the server has beside packets: by the audit's user, or below the transcript's folder."""

from pydantic import ValidationError

from simsplit.auditing.audit_options import AuditOptions
from simsplit.auditing.client_networks import ClientNetwork, load_network
from simsplit.auditing.public_data import load_public
from simsplit.data.samples import Samples
from simsplit.errors import SimsplitError
from simsplit.models.language import CausalLM
from simsplit.wires.transcript import Transcript


def find_network(options: AuditOptions, transcript: Transcript) -> ClientNetwork | None:
    """Return the client's network for images and tables, if the server knows it."""
    own = transcript.facts.knows
    holdings = {"model": transcript.find_holding(own.model), "module": own.module}
    if holdings["model"] is None:
        holdings = {}
    return load_network({**holdings, **options.knows})


def find_model(options: AuditOptions, transcript: Transcript) -> CausalLM | None:
    """Return the public model of texts, or raise SimsplitError; None of other data."""
    if transcript.facts.modality != "texts":
        return None
    for only in ("factory", "module"):
        if only in options.knows:
            raise SimsplitError(f"--knows: {only} is of networks for images and tables, not texts")
    own = transcript.find_holding(transcript.facts.knows.public)
    name = options.knows.get("model") or own
    if name is None:
        raise SimsplitError(
            "texts are read by the public model that they were encoded with; name its transformers "
            "folder: --knows model=DIR"
        )
    # Without its tail a model's trunk has no use either, and both take much memory.
    tail = options.get_number("tail", 0)
    try:
        return CausalLM(
            name=str(name),
            head=options.get_number("head", 0),
            tail=max(1, tail),
            trunk="layers" if tail else "skipped",
            learns=("tail",),
        )
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise SimsplitError(f"--knows: model {name}: {reason}") from None


def read_public(options: AuditOptions, transcript: Transcript, samples: Samples) -> Samples | None:
    """Read the public data that attackers have, if they have any."""
    given = options.public or transcript.find_holding(transcript.facts.knows.auxiliary)
    if given is None:
        return None
    model = find_model(options, transcript)
    return load_public(str(given), samples, None if model is None else model.make_reader())
