"""Ranks as processes: launchers, how processes of a host find each other, and `world`."""
