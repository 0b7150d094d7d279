"""Two hosts on one computer: network namespaces that a cable joins, which can be cut and made slow. They need no rights."""

import subprocess
import time

ADDRESSES = ("10.26.0.1", "10.26.0.2")


class Hosts:
    """Two network namespaces, in which processes see no interface but their end of the cable, and their own loopback.

    Attributes:
        problem: why there are none; empty where there are.
    """

    def __init__(self):
        self._holders, self.problem = [], ""
        try:
            self._hold("unshare", "--user", "--map-root-user", "--net")
            self._hold("nsenter", "--preserve-credentials", "--user", "-t", str(self._holders[0].pid), "unshare", "--net")
            self.call(0, "ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
            self.call(0, "ip", "link", "set", "far", "netns", str(self._holders[1].pid))
            for host, end in enumerate(("near", "far")):
                self.call(host, "ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", end)
                for device in ("lo", end):
                    self.call(host, "ip", "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.problem = f"no network namespaces: {getattr(error, 'stderr', None) or error}".strip()
            self.close()

    def _hold(self, *command):
        holder = subprocess.Popen([*command, "sh", "-c", "echo in; exec sleep 1000"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self._holders.append(holder)
        if holder.stdout.readline() != "in\n":
            raise OSError(holder.stderr.read())

    def inside(self, host, command):
        """A command as it runs on a host."""
        pid = str(self._holders[host].pid)
        return ["nsenter", "--preserve-credentials", "--user", "--net", "-t", pid, *command]

    def call(self, host, *command):
        subprocess.run(self.inside(host, command), check=True, capture_output=True, text=True, timeout=20)

    def cut(self):
        self.call(0, "ip", "link", "set", "near", "down")
        return time.monotonic()

    def shape(self, rate):
        """Limits the cable in both directions, to a rate as tc writes it."""
        for host, end in enumerate(("near", "far")):
            self.call(host, *f"tc qdisc replace dev {end} root tbf rate {rate} burst 1mb latency 50ms".split())

    def close(self):
        for holder in self._holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
            holder.stderr.close()
