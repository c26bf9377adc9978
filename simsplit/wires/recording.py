"""`simsplit.record` records what crosses a cut in any PyTorch loop, by hooks on modules.

A hook copies a module's output, and later the gradient with respect to it, on the device where it
lies. A thread behind the loop brings the copies to the processor and writes them. What the loop
computes does not change.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.errors import RunError
from simsplit.legs import ClientId
from simsplit.wires.facts import MOST_IDS, Content, Modality, TranscriptFacts
from simsplit.wires.transcribing import bound_classes, describe_samples
from simsplit.wires.transcript_writer import TranscriptWriter, parse_size

_LOG = logging.getLogger("simsplit")
Hook = Callable[[nn.Module, Any, Any], None]
Work = Callable[[], object]
AHEAD = 256 * 2**20
"""Bytes that wait to be written, at most; the loop waits when there are more."""
_GRADIENTS = {"smashed": "smashed_grad", "features": "features_grad"}


@contextmanager
def record(
    path: Path | str,
    *,
    smashed: nn.Module | None = None,
    features: nn.Module | None = None,
    labels: bool = False,
    gradients: bool = True,
    modality: Modality | None = None,
    content: Mapping[str, Content] | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    most: int | str = "2 GiB",
    every: int = 1,
) -> Iterator["Tape"]:
    """Record what crosses a cut while the block runs, as a transcript in a new folder.

    Args:
        path: The transcript's folder, which must be new or empty.
        smashed: The last module of the client's first part: its output is sent to the server.
        features: The server's module whose output is sent back, if there is one.
        labels: Whether the labels that `tape.samples` gets cross to the server, too.
        gradients: Whether gradients with respect to these outputs cross.
        modality: images, texts, table or vectors; by default it follows from the inputs.
        content: What tensors of a leg are, such as `{"smashed": "embeddings"}`.
        mean: What was subtracted from each channel of an image before the head.
        std: What each channel was divided by after that.
        most: The transcript's largest size; after it the loop goes on without being recorded.
        every: Record one step in this many.

    A step begins with each forward pass of `smashed` (or of `features` without it). Mixed precision
    is kept: packets have the type that crossed, and gradients the loss scaler's factor.

    >>> with record("wire", smashed=net.encoder) as tape:  # doctest: +SKIP
    ...     for ids, inputs, targets in loader:
    ...         tape.samples(ids, inputs=inputs, labels=targets)
    ...         loss(net(inputs), targets).backward()
    """
    modules = {"smashed": smashed, "features": features}
    named = {leg: module for leg, module in modules.items() if module is not None}
    _refuse_modules(named)
    legs = [*named, *(_GRADIENTS[leg] for leg in named if gradients), *["labels"] * labels]
    if every < 1:
        raise RunError(f"every: must be at least 1, got {every}")
    name = "simsplit.record"
    legs_hold = dict(content or {})  # copied, as it is read again while the loop runs
    describe = partial(describe_samples, name, recorder=name, legs=legs, content=legs_hold)
    kind = None if modality == "images" else modality  # of images, the size is lacking
    writer = TranscriptWriter(path, describe(inputs=None, modality=kind), parse_size(most))
    describe_first = partial(describe, modality=modality, mean=mean, std=std)
    tape = Tape(writer, describe_first, every, labels)
    if "torch._dynamo" in sys.modules:
        # Let compiled modules be compiled again: code that is there has no hooks in it.
        torch.compiler.reset()
    hooks = [module.register_forward_hook(tape.hook(leg)) for leg, module in named.items()]
    try:
        yield tape
    finally:
        for hook in hooks:
            hook.remove()
        tape.close()


class Tape:
    """A transcript that is being recorded."""

    def __init__(
        self,
        writer: TranscriptWriter,
        describe: Callable[..., TranscriptFacts],
        every: int,
        labels: bool,
    ) -> None:
        self.client: ClientId = 0
        """The client whose packets are recorded now; a loop over clients sets it."""
        self.round = 1
        """The round that is recorded now."""
        self.steps = 0
        """Steps that have begun, in training and evaluation."""
        self._writer, self._every, self._labels = writer, every, labels
        self._describe: Callable[..., TranscriptFacts] | None = describe
        """Makes the facts of samples from the first inputs; None once it has."""
        self._behind = WriteBehind()
        self._first = "smashed" if "smashed" in writer.facts.legs else "features"
        """The leg with which a step begins."""
        self._named: _Named | None = None
        """The samples of the step that comes next."""
        self._present: _Named | None = None
        """Those of the present step."""
        self._ids: tuple[int, ...] = ()
        self._session: _Spoken | None = None
        self._classes = 0
        self._is_open = True

    @property
    def ended(self) -> str:
        """Why nothing more is recorded; empty while it is."""
        return self._writer.ended or self._behind.failure

    @property
    def nbytes(self) -> int:
        """Bytes of tensors that were recorded so far."""
        return self._writer.nbytes

    def samples(
        self,
        ids: Any,  # noqa: ANN401 - numbers of any library
        inputs: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        """Name the samples of the next step, and their truth.

        `ids` are whole numbers, one for each sample. The first inputs and labels of an id are its
        truth: give inputs that are augmented anew ids of their own. Inputs are as the head gets
        them, or pixels as bytes.
        """
        numbers = _read_ids(ids)
        for name, values in (("inputs", inputs), ("labels", labels)):
            if values is None:
                continue
            if not isinstance(values, Tensor):
                raise RunError(
                    f"tape.samples: {name} must be a tensor, got {type(values).__name__}; give "
                    f"torch.as_tensor({name})"
                )
            if values.shape[:1] != (len(numbers),):
                rows = len(values) if values.dim() else "no rows of"
                raise RunError(f"tape.samples: {len(numbers)} ids and {rows} {name}")
        if self._labels and labels is None:
            raise RunError("tape.samples: needs labels, since labels=True says that they cross")
        self._named = _Named(numbers, inputs, labels)

    @contextmanager
    def session(self, number: int) -> Iterator["_Spoken"]:
        """Record the passes of one text that a model writes with a cache, such as `generate`.

        Set `tokens` on what this yields to the text, prompt included: judges compare with it.

        >>> with tape.session(7) as text:  # doctest: +SKIP
        ...     text.tokens = model.generate(prompt, max_new_tokens=20)[0]
        """
        if not 0 <= number < 2**53:
            raise RunError("tape.session: a session's number is a whole number from 0 on")
        self._session = spoken = _Spoken(number)
        try:
            yield spoken
        finally:
            self._session = None
        if spoken.tokens is not None and not self.ended:
            # The last token is written and never sent.
            tokens = torch.as_tensor(spoken.tokens).flatten()[: spoken.end]
            copies = {"inputs": _Copy(tokens[None])}
            self._behind.put(partial(self._write_truth, [number], copies), tokens.nbytes)

    def hook(self, leg: str) -> Hook:
        """Return the hook of a module whose outputs cross on a leg."""

        def keep(module: nn.Module, _: Any, output: Any) -> None:  # noqa: ANN401
            if getattr(module, "_is_replica", False):
                raise _refuse_data_parallel(leg)
            # Checkpointed layers run again in the backward pass, and send nothing then.
            is_in_backward = torch._C._current_graph_task_id() != -1
            if self._is_open and not self.ended and not is_in_backward:
                self._keep_output(leg, module, _find_tensor(leg, module, output))

        # Compiled code stops here, calls the hook as it is, and goes on.
        uncompiled: Hook = torch.compiler.disable(keep)
        return uncompiled

    def close(self) -> None:
        """Write what waits, and the facts."""
        self._is_open = False
        self._behind.close()
        if self._behind.failure and not self._writer.ended:
            self._writer.ended = f"recording failed: {self._behind.failure}"
        self._writer.close()
        if not (self.ended or self._writer.packets):
            _LOG.warning("%s is empty: no module was called that is recorded", self._writer.path)

    def _keep_output(self, leg: str, module: nn.Module, output: Tensor) -> None:
        if leg == self._first:
            self._begin_step(len(output) if output.dim() else 0)
        if (self.steps - 1) % self._every:
            return
        training = module.training and torch.is_grad_enabled()
        where: dict[str, Any] = {
            "client": self.client,
            "round": self.round,
            "step": max(self.steps - 1, 0),
            "ids": self._ids,
            "phase": "train" if training else "evaluate",
        }
        if self._session is not None:
            where |= self._session.place(output, begins=leg == self._first)
        self._put(leg, output, where)
        if leg == self._first and self._present is not None:
            self._keep_samples(where, self._present)
        grad_leg = _GRADIENTS[leg]
        if output.requires_grad and grad_leg in self._writer.facts.legs:
            # On the tensor, not the module: a hook on a module would change the graph.
            output.register_hook(partial(self._keep_gradient, grad_leg, where))

    def _keep_gradient(self, leg: str, where: dict[str, Any], grad: Tensor) -> None:
        if self._is_open and not self.ended:
            self._put(leg, grad, where)

    def _begin_step(self, rows: int) -> None:
        self.steps += 1
        # Once: a step that names no samples has none, even if the last one had.
        self._present, self._named = self._named, None
        self._ids = () if self._present is None else self._present.ids
        count = len(self._ids)
        if count and rows % count and count % max(rows, 1):
            raise RunError(
                f"tape.samples named {count} samples, and the module has an output of {rows} rows"
            )

    def _keep_samples(self, where: dict[str, Any], named: "_Named") -> None:
        """Write the truth of a step's samples, and their labels if these cross."""
        ids, inputs, labels = named
        if self._describe is not None and inputs is not None:
            self._writer.facts, self._describe = self._describe(inputs=inputs), None
        if labels is not None and self._labels:
            self._put("labels", labels, where)
        if inputs is None and labels is None:
            return
        held = {"inputs": inputs, "labels": labels}
        copies = {name: _Copy(each) for name, each in held.items() if each is not None}
        nbytes = sum(each.nbytes for each in copies.values())
        self._behind.put(partial(self._write_truth, ids, copies), nbytes)

    def _write_truth(self, ids: Sequence[int], copies: Mapping[str, "_Copy"]) -> None:
        values = {name: each.take() for name, each in copies.items()}
        labels = values.get("labels")
        whole = labels is not None and not labels.is_floating_point() and labels.numel() > 0
        if labels is not None and whole and labels.dim() == 1:
            self._classes = max(self._classes, int(labels.max()) + 1)
            known = {"classes": bound_classes(self._classes)}
            self._writer.facts = self._writer.facts.model_copy(update=known)
        self._writer.add_truth(ids, **values)

    def _put(self, leg: str, tensor: Tensor, where: dict[str, Any]) -> None:
        copied = _Copy(tensor)
        self._behind.put(partial(self._write, leg, copied, where), copied.nbytes)

    def _write(self, leg: str, copied: "_Copy", where: dict[str, Any]) -> None:
        self._writer.add(leg, [copied.take()], copy=False, **where)


class _Named(NamedTuple):
    """What a loop said of a step's samples."""

    ids: tuple[int, ...]
    inputs: Tensor | None
    labels: Tensor | None


class _Spoken:
    """A text that is being written in a session."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens: Any = None
        """The text, prompt included; its owner sets it for judges."""
        self.start = self.end = 0
        """The places of the present pass among the tokens that crossed."""

    def place(self, output: Tensor, *, begins: bool) -> dict[str, Any]:
        """Return the place of a pass, as packets have it."""
        if output.dim() != 3 or len(output) != 1:
            raise RunError(
                "tape.session: a session has one text, whose passes are 1 x tokens x width; got "
                f"{list(output.shape)}"
            )
        if begins:
            self.start, self.end = self.end, self.end + output.shape[1]
        about = {"ids": (self.number,), "phase": "sessions"}
        return {**about, "session": self.number, "position": self.start}


class _Copy:
    """A copy of a tensor where it lies; it is brought to the processor behind the loop."""

    def __init__(self, tensor: Tensor) -> None:
        self.nbytes = tensor.nbytes
        # At once: the loop may change the tensor in place.
        self._tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._copied: Any = None
        if tensor.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def take(self) -> Tensor:
        """Return the copy, in the processor's memory."""
        if self._copied is None:
            return self._tensor.cpu()
        # On a stream of its own, so that the loop's kernels do not wait for the transfer.
        stream = torch.cuda.Stream(self._tensor.device)
        with torch.cuda.stream(stream):
            stream.wait_event(self._copied)
            held = torch.empty(self._tensor.shape, dtype=self._tensor.dtype, pin_memory=True)
            held.copy_(self._tensor, non_blocking=True)
        stream.synchronize()
        return held


def _read_ids(ids: Any) -> tuple[int, ...]:  # noqa: ANN401 - numbers of any library
    """Return the ids of samples; raise RunError for others than whole numbers."""
    try:
        numbers = tuple(int(each) for each in (ids.tolist() if isinstance(ids, Tensor) else ids))
    except (TypeError, ValueError, OverflowError):  # words, or one number alone
        numbers = (-1,)
    if any(not 0 <= each < MOST_IDS for each in numbers):
        raise RunError("tape.samples: ids must be whole numbers from 0 on, one for each sample")
    return numbers


def _find_tensor(leg: str, module: nn.Module, output: Any) -> Tensor:  # noqa: ANN401
    """Return a module's output, or the first tensor in it."""
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping | tuple | list):
        for each in values:
            if isinstance(each, Tensor):
                return each
    raise RunError(
        f"{leg}: {type(module).__name__} returned {type(output).__name__} without a tensor; name "
        "a module whose output crosses"
    )


def _refuse_modules(named: Mapping[str, nn.Module]) -> None:
    """Raise RunError for what cannot be recorded."""
    if not named:
        raise RunError("nothing to record: give smashed, features, or both")
    for leg, module in named.items():
        if not isinstance(module, nn.Module):
            raise RunError(f"{leg}: must be a module (nn.Module), got {type(module).__name__}")
        if any(isinstance(each, nn.DataParallel) for each in module.modules()):
            raise _refuse_data_parallel(leg)


def _refuse_data_parallel(leg: str) -> RunError:
    return RunError(
        f"{leg}: DataParallel splits a batch over copies of a module, whose outputs come in no "
        "order; use DistributedDataParallel, with a transcript for each process"
    )


class WriteBehind:
    """A thread that does pieces of work in order; work that fails ends it, with its reason."""

    def __init__(self, ahead: int = AHEAD) -> None:
        self.ahead = ahead
        self.failure = ""
        """Why a piece of work failed; empty if none has."""
        self._waiting: deque[tuple[Work, int]] = deque()
        self._nbytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="simsplit-record", daemon=True)
        self._thread.start()

    def put(self, work: Work, nbytes: int) -> None:
        """Add a piece of work that holds `nbytes`, when there is room for it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._nbytes or self._nbytes + nbytes <= self.ahead)
            self._waiting.append((work, nbytes))
            self._nbytes += nbytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all work is done, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                work, nbytes = self._waiting.popleft()
            if not self.failure:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - the loop must go on, whatever it is
                    self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
            del work  # and with it the tensors, before the loop may add others
            with self._changed:
                self._nbytes -= nbytes
                self._changed.notify_all()
