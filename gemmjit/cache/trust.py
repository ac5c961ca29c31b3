"""Who may have written a file: cubins are code, so only their user and root are believed."""

from __future__ import annotations

import os
import stat

__all__ = ["distrust"]


def distrust(status: os.stat_result, *, any_owner: bool = False) -> str | None:
    """Return why a file or directory must not be used, or None if it may.

    Parameters
    ----------
    status : os.stat_result
    any_owner : bool
        Whether someone else may own it; so for directories that the user names as read-only
        layers: their owner was chosen, but nobody else may write there.

    Notes
    -----
    A directory that others can write but whose sticky bit is set passes: they cannot replace what
    is ours, and what is theirs fails the test of its own owner. A group counts as others unless it
    is the user's private one (the same number as the user's).
    """
    user = os.geteuid()
    if not any_owner and status.st_uid not in (user, 0):
        return f"it belongs to user {status.st_uid}, not to user {user}"
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & stat.S_IWOTH and not sticky:
        return "everybody can write to it"
    private_group = status.st_gid == status.st_uid
    if status.st_mode & stat.S_IWGRP and not private_group and not sticky:
        return f"group {status.st_gid} can write to it"
    return None
