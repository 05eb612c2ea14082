"""One step of anybody's training loop: what it would give away, in two lines."""

from seepage.step.audit_step import audit_step
from seepage.step.step_result import StepAudit

__all__ = ["StepAudit", "audit_step"]
