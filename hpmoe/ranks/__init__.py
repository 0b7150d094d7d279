"""Ranks as processes: launchers, and how processes of a host find each other."""
