"""How many tokens or patches of a batch a network gives away, before anything is shared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from seepage.attacks.dager import find_readers
from seepage.attacks.linear_systems.patch_readers import find_patch_readers
from seepage.attacks.text.readers import Reader, stack_gradients
from seepage.attacks.text.token_span import list_token_readers
from seepage.attacks.text.token_table import find_token_table
from seepage.core import Task, Update
from seepage.core.errors import NotApplicable


@dataclass(frozen=True)
class TokenBudget:
    """What the trained parameters of a network tell about the tokens of a batch.

    Args:
        table: Name of the trained embeddings, whose gradient names every token; None if they are
            frozen.
        tied: Whether the output layer shares them, which hides some.
        layers: Names of the trained layers that read single tokens, such as the matrices A of
            adapters on the first attention; without such, of a decoder's layers that read prefixes.
        rank: Rows of all their weights together.
        width: Length of the vectors that they read.
        attack: What reads them.
    """

    table: str | None
    tied: bool
    layers: tuple[str, ...]
    rank: int
    width: int
    attack: str = "token_span"

    @property
    def tokens(self) -> int:
        """How many tokens of a batch the gradients of these layers determine."""
        # Prefixes are told from others only if a row is left over.
        rows = self.rank - 1 if self.attack == "dager" else self.rank
        return min(rows, max(0, self.width - 1))

    @property
    def advice(self) -> str:
        """What the numbers mean, in one sentence."""
        if self.table is not None and not self.tied:
            return (
                f"every token of a batch of any size leaks from the rows of {self.table} that "
                "have a gradient (bag_of_words): freeze the embeddings, or add noise"
            )
        if not self.layers:
            return (
                "no trained layer reads single tokens or a decoder's prefixes, as where a prompt, "
                "a prefix or a classifier's head alone is trained, so none leaks by a closed form "
                "known here; gradients still depend on every text, so this is no promise"
            )
        named = ", ".join(self.layers)
        return (
            f"with {self.rank} rows over {named}, up to {self.tokens} tokens of a batch leak "
            f"exactly ({self.attack}), and fewer of a larger batch: share updates of batches with "
            "many times as many tokens, or add noise"
        )


def token_budget(task: Task) -> TokenBudget:
    """Count the tokens that the gradient of a network determines.

    The embeddings name all of them. Else the row space of the gradients of layers that read single
    tokens has room for as many as these layers have rows, below the width of what they read; where
    only a decoder's last layers are trained, that of layers which read prefixes has.

    Example:
        >>> from seepage.zoo import gpt
        >>> token_budget(gpt(width=64, layers=2, lora=4)).tokens
        12
        >>> token_budget(gpt(width=64, layers=2)).table
        'tokens.weight'

    Raises:
        NotApplicable: Inputs are no texts.
    """
    table, tied = None, False
    readers: dict[Reader, str] = {}
    with suppress(NotApplicable):
        found = find_token_table(task)
        table, tied = found.weight, found.tied
    with suppress(NotApplicable):
        readers = dict.fromkeys(list_token_readers(task), "token_span")
    with suppress(NotApplicable):
        readers = readers or dict.fromkeys(find_readers(task, tolerance=1e-6).later, "dager")
    counted = []
    for reader, attack in readers.items():
        rows, width = stack_gradients(task, reader, Update(task.parameters)).shape
        counted.append(TokenBudget(table, tied, reader, rows, width, attack))
    return max(counted, key=lambda one: one.tokens, default=TokenBudget(table, tied, (), 0, 0))


@dataclass(frozen=True)
class PatchBudget:
    """What the trained parameters of a vision transformer tell about the patches of a batch.

    Args:
        layers: Names of the trained layers that read single patches, such as the matrices A of
            adapters on the first attention.
        rank: Rows of all their weights together.
        width: Length of the vectors that they read.
        patches: Of an image.
        images: How many images the row space of their gradient has room for.
    """

    layers: tuple[str, ...]
    rank: int
    width: int
    patches: int
    images: int

    @property
    def advice(self) -> str:
        """What the numbers mean, in one sentence."""
        named = ", ".join(self.layers)
        if not self.images:
            return (
                f"with {self.rank} rows over {named}, the {self.patches} patches of one image are "
                "not told apart by a closed form known here; gradients still depend on every "
                "image, so this is no promise"
            )
        return (
            f"with {self.rank} rows over {named} and {self.patches} patches of an image, batches "
            f"of up to {self.images} images may leak exactly (april); this says nothing of what "
            "searches bring back from larger ones"
        )


def patch_budget(task: Task) -> PatchBudget:
    """Count the images that the gradient of a vision transformer has room for.

    Raises:
        NotApplicable: The network cuts no patches, or trains no layer that reads them.
    """
    found = find_patch_readers(task)
    rows, width = stack_gradients(task, found.first, Update(task.parameters)).shape
    return PatchBudget(found.first, rows, width, found.count, found.room(task))
