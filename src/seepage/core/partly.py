"""What is said where some of several updates cannot be attacked."""

from __future__ import annotations

from collections.abc import Mapping

from seepage.core.errors import SeepageError
from seepage.core.reconstruction import Reconstruction


class PartlyFailed(SeepageError):
    """Of several updates attacked side by side, some could not be; the others are not lost.

    Args:
        attack: Which attack says so. One around it, which had more to do with what came back or
            gave it some of the updates only, is another.
        found: What came back, by its place among the updates.
        failed: Why the others could not be attacked, likewise.
    """

    def __init__(
        self,
        attack: object,
        found: Mapping[int, Reconstruction],
        failed: Mapping[int, Exception],
    ) -> None:
        """Compose the sentence from the first reason."""
        self.attack, self.found, self.failed = attack, found, failed
        whole, reason = len(found) + len(failed), next(iter(failed.values()))
        super().__init__(f"{len(failed)} of {whole} updates could not be attacked; {reason}")
