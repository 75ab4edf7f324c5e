"""The policy of a site: what its owner allows, checked on the site, and the log of what was done under it."""

from fedgc.policy.audit_log import AuditLog, Entry, verify
from fedgc.policy.check import (
    Exchange,
    Refusal,
    Request,
    check,
    check_app,
    check_bytes,
    check_exchange,
    check_release,
    check_run,
    figures_that_leave,
    loss_leaves,
)
from fedgc.policy.hours import Hours
from fedgc.policy.policy import Policy
from fedgc.policy.reading import explained, implied, read_policy
from fedgc.policy.statement import SentApp, Statement, pinned_settings, read_statement
from fedgc.policy.totals import Totals

__all__ = [
    "AuditLog", "Entry", "Exchange", "Hours", "Policy", "Refusal", "Request", "SentApp", "Statement",
    "Totals", "check", "check_app", "check_bytes", "check_exchange", "check_release", "check_run",
    "explained", "figures_that_leave", "implied", "loss_leaves", "pinned_settings", "read_policy",
    "read_statement", "verify",
]  # fmt: skip
