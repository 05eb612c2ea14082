"""Audit one step of your own training loop, in two lines."""

from seepage.step._audit_step import audit_step
from seepage.step._step_result import StepAudit

__all__ = ["StepAudit", "audit_step"]
