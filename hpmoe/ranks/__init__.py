"""Ranks as processes: launchers, how processes of a host find each other, `world` and `synchronize`."""

from hpmoe.ranks.synchronize import synchronize as synchronize

__all__ = ["synchronize"]
