"""Two hosts with a network between them that can be cut: two network namespaces, and a third one that forwards between
them."""

import os
import subprocess


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class CutNetwork:
    """Created by `with`. The hosts `first` and `second` have one address each. While the network is cut, packets are
    lost silently."""

    hosts = ("first", "second")
    addresses = ("10.231.1.1", "10.231.2.1")

    def __init__(self):
        self.spaces = [f"furlong{os.getpid()}{name}" for name in ("first", "second", "middle")]

    def __enter__(self):
        try:
            for space in self.spaces:
                run("ip", "netns", "add", space)
                run("ip", "-n", space, "link", "set", "lo", "up")
            for side in range(2):
                self._connect(side)
            self.join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            subprocess.run(("ip", "netns", "delete", space), capture_output=True)

    def _connect(self, side):
        """Connects a host to the middle, with a route to the other host."""
        host, middle = self.spaces[side], self.spaces[2]
        gateway = self.addresses[side][:-1] + "254"
        run(
            "ip", "link", "add", "cable", "netns", host, "type", "veth", "peer", "name", f"cable{side}", "netns", middle
        )
        for space, name, address in ((host, "cable", self.addresses[side]), (middle, f"cable{side}", gateway)):
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", name)
            run("ip", "-n", space, "link", "set", name, "up")
        run("ip", "-n", host, "route", "add", "default", "via", gateway)

    def _forward(self, value):
        run("ip", "netns", "exec", self.spaces[2], "sh", "-c", f"echo {value} >/proc/sys/net/ipv4/ip_forward")

    def cut(self):
        self._forward(0)

    def join(self):
        self._forward(1)

    def command(self, side, command):
        """Returns the command wrapped to run on one of the hosts, under its host name."""
        return [
            "ip",
            "netns",
            "exec",
            self.spaces[side],
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname {self.hosts[side]}; exec "$@"',
            "sh",
            *command,
        ]


def why_not():
    """Returns why this machine cannot create such a network, or None."""
    try:
        with CutNetwork() as network:
            run(*network.command(0, ["true"]))
    except FileNotFoundError as error:
        return f"{error.filename} is not installed (Debian: iproute2, util-linux)"
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1] if error.stderr.strip() else error
        return f"network namespaces are not permitted: {reason}"
    return None
