"""The exceptions of phasegate.

    PhasegateError                  anything we raise on purpose
    └── InputError                  bad input; the CLI prints its one line and exits with 2
        ├── ProfileError            a profile that cannot be read or makes no sense
        ├── PolicyError             a policy spec string that cannot be understood
        ├── WorkloadError           a workload spec or a trace file
        └── ModelError              a model that cannot be loaded or does not fit

Messages name the field, the value and the remedy, in one line.
"""

from __future__ import annotations


class PhasegateError(Exception):
    """Base of every exception that phasegate raises on purpose."""


class InputError(PhasegateError):
    """Input from a person is wrong; the message says which, and what to do."""


class ProfileError(InputError):
    """A profile is unknown, unreadable or inconsistent."""


class PolicyError(InputError):
    """A policy spec string is unknown, malformed or contradicts itself."""


class WorkloadError(InputError):
    """A workload spec or a trace file is malformed."""


class ModelError(InputError):
    """A model cannot be loaded, is not a decoder, or does not fit into memory."""
