"""A Flower client app that holds the first part of a network, and sends what it makes of its data.

The server asks with a `query` for smashed data, and answers with a `train` that has their gradient.
"""

import numpy as np
import torch
from flwr.clientapp import ClientApp
from flwr.common import Array, ArrayRecord, Context, Message, RecordDict
from sklearn.datasets import load_digits
from torch import Tensor, nn

from simsplit.wires.flower import transcribe_messages

BATCH_SIZE, SAMPLES = 32, 256
CLIENTS: dict[int, "SplitClient"] = {}
"""The clients of this process, by their partitions."""


class SplitClient:
    """A client's part of the network, and its own digits."""

    def __init__(self, partition: int) -> None:
        pixels = load_digits().images[partition * SAMPLES : (partition + 1) * SAMPLES]
        self.images = torch.as_tensor(pixels, dtype=torch.float32)[:, None] / 16
        torch.manual_seed(partition)  # noqa: TID251 - as a script of its own does
        self.encoder = nn.Conv2d(1, 4, 3, padding=1)
        self.optimizer = torch.optim.SGD(self.encoder.parameters(), 0.1)
        self.ids = torch.arange(-BATCH_SIZE, 0)
        self.sent: Tensor | None = None


def find_client(context: Context) -> SplitClient:
    """Return the client of a node's partition."""
    partition = int(context.node_config["partition-id"])
    return CLIENTS.setdefault(partition, SplitClient(partition))


def take_samples(context: Context) -> tuple[list[int], Tensor, None]:
    """Return the ids and images of what was just sent, for the recorder alone."""
    client = find_client(context)
    return client.ids.tolist(), client.images[client.ids], None


app = ClientApp(
    mods=[transcribe_messages("wires", legs={"activations": "smashed"}, samples=take_samples)]
)


def answer_with(message: Message, **arrays: Tensor) -> Message:
    """Answer a message with arrays by name."""
    record = ArrayRecord({name: Array(each.detach().numpy()) for name, each in arrays.items()})
    return Message(RecordDict({"arrays": record}), reply_to=message)


@app.query()
def send_activations(message: Message, context: Context) -> Message:
    """Send what the encoder makes of the next batch."""
    client = find_client(context)
    client.ids = (client.ids + BATCH_SIZE) % SAMPLES
    client.sent = client.encoder(client.images[client.ids])
    return answer_with(message, activations=client.sent)


@app.train()
def learn(message: Message, context: Context) -> Message:
    """Take a step with the gradient that the server sent."""
    client, record = find_client(context), message.content.array_records["arrays"]
    if client.sent is not None:
        client.optimizer.zero_grad()
        client.sent.backward(torch.from_numpy(np.array(record["smashed_grad"].numpy())))
        client.optimizer.step()
    return answer_with(message)
